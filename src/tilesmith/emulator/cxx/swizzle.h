// The permutation of 16-byte pieces in shared memory that TMA and the tensor cores share. It is of the
// address, not of the place in a tile, so it depends on where the tile begins.
#pragma once

#include <cstdint>

namespace tilesmith::emulator {

constexpr std::uint32_t granule_bytes = 16;

// Where the byte goes that would be at this address if its line were not swizzled. Lines of 16 bytes are not.
inline std::uint32_t swizzled(std::uint32_t address, std::uint32_t line_bytes) {
  return address ^ (address >> 7 & (line_bytes / granule_bytes - 1)) << 4;
}

}  // namespace tilesmith::emulator
