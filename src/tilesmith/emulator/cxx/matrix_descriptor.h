// Where the tensor cores find an operand's elements in shared memory, by its matrix descriptor.
//
//   K-major    lines of 32, 64 or 128 bytes along K, one for each row; eight lines, then a stride
//   MN-major   lines of 32, 64 or 128 bytes along the rows, one for each k; eight lines, then a stride; where a line
//              ends, the rows go on at the leading offset
//   K-major, not swizzled    8x8 elements in 128 bytes; a stride to the next rows, a leading offset to the next of K
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "swizzle.h"

namespace tilesmith::emulator {

enum class Major { k, mn };

struct MatrixDescriptor {
  std::uint32_t address;  // in the window of shared memory, whose addresses have 18 bits
  std::uint32_t leading_bytes;
  std::uint32_t stride_bytes;
  std::uint32_t base_offset;
  std::uint32_t line_bytes;  // the width of the swizzle; 16 for none

  static MatrixDescriptor of(std::uint64_t bits) {
    constexpr std::uint32_t widths[] = {16, 128, 64, 32};
    const auto offset = [bits](int first) { return static_cast<std::uint32_t>(bits >> first & 0x3fff) << 4; };
    return {offset(0), offset(16), offset(32), static_cast<std::uint32_t>(bits >> 49 & 7), widths[bits >> 62]};
  }
};

// What is wrong with a descriptor, in words; nothing if it is of a layout that is known here.
inline std::string fault_of(const MatrixDescriptor& matrix, Major major) {
  if (matrix.base_offset != 0)
    return "its base offset is " + std::to_string(matrix.base_offset) + ", and only 0 is emulated";
  if (matrix.line_bytes == granule_bytes && major == Major::mn)
    return "it is MN-major without a swizzle, which is not emulated";
  return {};
}

// The address of element (row, k), k below 16, in the window of shared memory.
inline std::uint32_t element_address(const MatrixDescriptor& matrix, Major major, int row, int k) {
  const std::uint32_t m = static_cast<std::uint32_t>(row), depth = static_cast<std::uint32_t>(k);
  const std::uint32_t line = matrix.line_bytes, line_elements = line / 2;
  std::uint32_t offset;
  if (line == granule_bytes)
    offset = m / 8 * matrix.stride_bytes + m % 8 * line + depth / 8 * matrix.leading_bytes + depth % 8 * 2;
  else if (major == Major::k)
    offset = m / 8 * matrix.stride_bytes + m % 8 * line + depth * 2;
  else
    offset = m / line_elements * matrix.leading_bytes + m % line_elements * 2 + depth / 8 * matrix.stride_bytes +
             depth % 8 * line;
  return swizzled(matrix.address + offset, line);
}

// Visits an operand in pieces of 16 bytes: calls visit(address, row, k) with a piece's first element. The others follow
// along K or along the rows.
template <typename Visit>
inline void visit_operand(const MatrixDescriptor& matrix, Major major, int rows, Visit visit) {
  const int row_step = major == Major::k ? 1 : 8, k_step = major == Major::k ? 8 : 1;
  for (int row = 0; row < rows; row += row_step)
    for (int k = 0; k < 16; k += k_step) visit(element_address(matrix, major, row, k), row, k);
}

// Copies an operand to `to`, rows x 16. `window` is where the address 0 of shared memory would be, of which the
// addresses from `begin` to `end` exist. The answer is the first address outside of them, if there is one; then `to` is
// not complete.
inline std::optional<std::uint32_t> gather(std::uint16_t* to, const MatrixDescriptor& matrix, Major major, int rows,
                                           const unsigned char* window, std::uint32_t begin, std::uint32_t end) {
  std::optional<std::uint32_t> outside;
  visit_operand(matrix, major, rows, [&](std::uint32_t address, int row, int k) {
    if (address < begin || address + granule_bytes > end) {
      outside = outside ? outside : address;
      return;
    }
    if (major == Major::k) {
      std::memcpy(to + row * 16 + k, window + address, granule_bytes);
      return;
    }
    std::uint16_t piece[8];
    std::memcpy(piece, window + address, granule_bytes);
    for (int i = 0; i < 8; ++i) to[(row + i) * 16 + k] = piece[i];
  });
  return outside;
}

}  // namespace tilesmith::emulator
