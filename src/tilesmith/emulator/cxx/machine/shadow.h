// What is known about every byte of a block's shared memory.
#pragma once

#include <cstdint>
#include <vector>

namespace tilesmith::emulator {

enum class ByteState : unsigned char { uninitialised = 0, written = 1, in_flight = 2, barrier = 3 };

struct Shadow {
  struct Writer {
    std::uint32_t when = 0;  // the fence clock
    std::uint32_t thread = 0;
  };
  std::vector<ByteState> state;        // of a byte
  std::vector<Writer> writer;          // of four bytes
  std::vector<unsigned char> readers;  // of sixteen bytes: asynchronous operations that read them

  void clear(std::uint64_t bytes) {
    state.assign(bytes + 16, ByteState::uninitialised);
    writer.assign(bytes / 4 + 4, {});
    readers.assign(bytes / 16 + 2, 0);
  }
};

}  // namespace tilesmith::emulator
