// What emulator/launch.py gives to a kernel's library, and gets back. Its structures have the same fields.
#pragma once

#include <cstdint>

namespace tilesmith::emulator {

// Global memory that the kernel may read, or write.
struct Buffer {
  const char* name;
  unsigned char* begin;
  std::uint64_t bytes;
};

struct Launch {
  const void* parameters;
  std::uint64_t parameter_bytes;
  const Buffer* buffers;
  std::uint32_t buffer_count;
  std::uint32_t grid[3];
  std::uint32_t threads;
  std::uint32_t cluster;
  std::uint32_t awaits_predecessor;
  std::uint32_t has_products;  // of tensor cores, by warpgroups
  std::uint32_t is_random;
  std::uint64_t seed;
  char* error;  // what went wrong; an address in the library is written @{hexadecimal offset}
  std::uint64_t error_bytes;
  std::uint64_t* bank_conflicts;  // passes over shared memory that matrices took beyond their first ones
};

}  // namespace tilesmith::emulator

// 0 if all went well.
extern "C" __attribute__((visibility("default"))) int tilesmith_launch(const tilesmith::emulator::Launch* launch);

// The rest of the library: the kernel, and its dynamic shared memory in the window of the calling block.
extern "C" void tilesmith_kernel(const void* parameters);
extern "C" unsigned char* tilesmith_shared_bytes();
