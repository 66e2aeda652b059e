// Arithmetic on pairs of float16 in one register, as PTX defines it.
#pragma once

#include <cstdint>

#include "formats.h"

namespace tilesmith::emulator {

template <typename Operation>
inline std::uint32_t on_each_half(std::uint32_t x, std::uint32_t y, Operation operation) {
  return pair_of(operation(low_of(x), low_of(y)), operation(high_of(x), high_of(y)));
}

// Numbers in their order, -0 before +0.
inline int half_rank(std::uint16_t bits) { return bits & 0x8000 ? -1 - (bits & 0x7fff) : bits; }

inline std::uint32_t half_pair_absolute(std::uint32_t x) { return x & 0x7fff7fff; }

// Of a number and a NaN, the number.
inline std::uint32_t half_pair_min(std::uint32_t x, std::uint32_t y) {
  return on_each_half(x, y, [](std::uint16_t p, std::uint16_t q) {
    if (is_half_nan(p))
      return is_half_nan(q) ? half_nan : q;
    return is_half_nan(q) || half_rank(p) <= half_rank(q) ? p : q;
  });
}

// A NaN on either side stays one.
inline std::uint32_t half_pair_max_or_nan(std::uint32_t x, std::uint32_t y) {
  return on_each_half(x, y, [](std::uint16_t p, std::uint16_t q) {
    if (is_half_nan(p) || is_half_nan(q))
      return half_nan;
    return half_rank(p) >= half_rank(q) ? p : q;
  });
}

// A float has enough bits for its own rounding not to change that to a half.
inline std::uint32_t half_pair_add(std::uint32_t x, std::uint32_t y) {
  return on_each_half(
      x, y, [](std::uint16_t p, std::uint16_t q) { return float_to_half(half_to_float(p) + half_to_float(q)); });
}

}  // namespace tilesmith::emulator
