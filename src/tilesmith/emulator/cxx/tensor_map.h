// What a tensor map tells TMA, and the boxes that it copies. emulator/tensor_map.py writes the struct.
#pragma once

#include <cstdint>
#include <string>

#include "swizzle.h"

namespace tilesmith::emulator {

constexpr int most_dimensions = 5;
constexpr std::uint32_t tensor_map_mark = 0x70616d54;  // memory that is no tensor map rarely has it

// The contiguous dimension comes first.
struct alignas(64) TensorMap {
  std::uint64_t address;
  std::uint64_t sizes[most_dimensions];
  std::uint64_t strides[most_dimensions - 1];  // bytes, from the second dimension on
  std::uint32_t box[most_dimensions];
  std::uint32_t element_bytes;
  std::uint32_t rank;
  std::uint32_t line_bytes;  // the width of the swizzle; 16 for none
  std::uint32_t mark;
  std::uint32_t rounds_to_tf32;  // each float32 that is loaded
  std::uint8_t unused[8];

  std::uint32_t box_line_bytes() const { return box[0] * element_bytes; }
  std::uint32_t box_bytes() const {
    std::uint32_t bytes = element_bytes;
    for (std::uint32_t d = 0; d < rank; ++d) bytes *= box[d];
    return bytes;
  }
};
static_assert(sizeof(TensorMap) == 128);

// What is wrong with a map, in words; nothing if the driver would encode it.
inline std::string fault_of(const TensorMap& map) {
  const auto at = [](const char* what, std::uint32_t dimension, std::uint64_t value) {
    return std::string(what) + " of dimension " + std::to_string(dimension) + " is " + std::to_string(value);
  };
  if (map.mark != tensor_map_mark)
    return "it is no tensor map";
  if (map.rank < 1 || map.rank > most_dimensions)
    return "it has " + std::to_string(map.rank) + " dimensions, not 1 to 5";
  if (map.element_bytes != 1 && map.element_bytes != 2 && map.element_bytes != 4 && map.element_bytes != 8)
    return "its elements have " + std::to_string(map.element_bytes) + " bytes, not 1, 2, 4 or 8";
  if (map.address % granule_bytes != 0)
    return "its address is not a multiple of 16";
  for (std::uint32_t d = 0; d < map.rank; ++d) {
    if (map.sizes[d] < 1 || map.sizes[d] > 1ull << 32)
      return at("the size", d, map.sizes[d]) + ", not 1 to 2^32";
    if (map.box[d] < 1 || map.box[d] > 256)
      return at("the box", d, map.box[d]) + ", not 1 to 256";
    if (d > 0 && map.strides[d - 1] % granule_bytes != 0)
      return at("the stride", d, map.strides[d - 1]) + " bytes, not a multiple of 16";
    if (d > 0 && map.strides[d - 1] >= 1ull << 40)
      return at("the stride", d, map.strides[d - 1]) + " bytes, not below 2^40";
  }
  if (map.line_bytes != 16 && map.line_bytes != 32 && map.line_bytes != 64 && map.line_bytes != 128)
    return "its swizzle is of " + std::to_string(map.line_bytes) + " bytes, not 16, 32, 64 or 128";
  if (map.box_line_bytes() % granule_bytes != 0)
    return "a line of its box has " + std::to_string(map.box_line_bytes()) + " bytes, not a multiple of 16";
  if (map.line_bytes > granule_bytes && map.box_line_bytes() > map.line_bytes)
    return "a line of its box has " + std::to_string(map.box_line_bytes()) + " bytes, more than its swizzle of " +
           std::to_string(map.line_bytes);
  return {};
}

// What is wrong with the place of a box in shared memory; nothing if TMA takes it.
inline std::string place_fault_of(std::uint32_t shared_address) {
  if (shared_address % 128 != 0)
    return "its address in shared memory, " + std::to_string(shared_address) + ", is not a multiple of 128";
  return {};
}

// Sixteen bytes of a box. Byte i of them in shared memory is byte i in global memory; the bytes from `first` on are
// inside of the tensor, `count` of them. A load fills the others with zeros, a store leaves them out.
struct BoxPiece {
  std::uint32_t shared_address;
  std::uint64_t global_address;  // of byte 0, which may itself be outside
  std::uint32_t first, count;
  bool rounds_to_tf32;
};

// Visits the pieces of the box that begins at `coordinates`, in the order of their unswizzled places from
// `shared_address` on. Calls visit(const BoxPiece&). The map has no fault.
template <typename Visit>
inline void visit_box(const TensorMap& map, const std::int32_t* coordinates, std::uint32_t shared_address,
                      Visit visit) {
  const std::uint32_t line_bytes = map.box_line_bytes();
  const std::uint32_t lines = map.box_bytes() / line_bytes;
  // In bytes from the line's beginning in the tensor; a coordinate may be negative.
  const std::int64_t begin = std::int64_t{coordinates[0]} * map.element_bytes;
  const std::int64_t end = static_cast<std::int64_t>(map.sizes[0]) * map.element_bytes;
  for (std::uint32_t line = 0; line < lines; ++line) {
    bool is_inside = true;
    std::uint64_t line_address = map.address;
    std::uint32_t left = line;
    for (std::uint32_t d = 1; d < map.rank; ++d) {
      const std::int64_t at = std::int64_t{coordinates[d]} + left % map.box[d];
      left /= map.box[d];
      is_inside = is_inside && at >= 0 && at < static_cast<std::int64_t>(map.sizes[d]);
      line_address += static_cast<std::uint64_t>(at) * map.strides[d - 1];
    }
    for (std::uint32_t offset = 0; offset < line_bytes; offset += granule_bytes) {
      const std::int64_t from = begin + offset, to = from + granule_bytes;
      const std::int64_t inside_from = from < 0 ? 0 : from, inside_to = to > end ? end : to;
      BoxPiece piece;
      piece.rounds_to_tf32 = map.rounds_to_tf32 != 0;
      piece.shared_address = swizzled(shared_address + line * line_bytes + offset, map.line_bytes);
      piece.global_address = line_address + static_cast<std::uint64_t>(from);
      piece.count = is_inside && inside_from < inside_to ? static_cast<std::uint32_t>(inside_to - inside_from) : 0;
      piece.first = piece.count ? static_cast<std::uint32_t>(inside_from - from) : 0;
      visit(piece);
    }
  }
}

}  // namespace tilesmith::emulator
