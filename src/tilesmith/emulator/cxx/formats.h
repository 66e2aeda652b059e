// Floating-point numbers as bit patterns, and the conversions between formats as the GPU's instructions make them:
// round to nearest, ties to even, subnormals kept. Every NaN becomes the one NaN of the format, as PTX documents it.
#pragma once

#include <cstdint>
#include <cstring>

namespace tilesmith::emulator {

constexpr std::uint32_t float_nan = 0x7fffffff;
constexpr std::uint16_t half_nan = 0x7fff;
constexpr std::uint16_t bfloat16_nan = 0x7fff;

template <typename To, typename From>
inline To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline std::uint32_t bits_of(float value) { return same_bits<std::uint32_t>(value); }
inline std::uint64_t bits_of(double value) { return same_bits<std::uint64_t>(value); }
inline float float_of(std::uint32_t bits) { return same_bits<float>(bits); }
inline double double_of(std::uint64_t bits) { return same_bits<double>(bits); }

inline bool is_half_nan(std::uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

inline float half_to_float(std::uint16_t bits) {
  if (is_half_nan(bits))
    return float_of(float_nan);
  const std::uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  if (size == 0x7c00)
    return float_of(sign | 0x7f800000);
  // As a float with the exponent of a half it is 2^112 too small, and exact also where the half is subnormal.
  return float_of(sign | bits_of(float_of(size << 13) * 0x1p112f));
}

inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  if (size > 0x7f800000)
    return half_nan;
  if (size >= 0x477ff000)  // it rounds to 2^16 or more
    return sign | 0x7c00;
  if (size < 0x38800000)  // subnormal: adding 1/2 leaves multiples of 2^-24 in the last places
    return static_cast<std::uint16_t>(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
  return static_cast<std::uint16_t>(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}

inline float bfloat16_to_float(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return bfloat16_nan;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The bits of float32 as TF32.
inline std::uint32_t bits_to_tf32(std::uint32_t bits) {
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}
inline std::uint32_t bits_to_tf32_away(std::uint32_t bits) {  // of two that are as near, the larger one
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}

constexpr std::int64_t below_float = (1ll << 29) - 1;  // the bits that a double has and a float has not

// A double to float32, cut off toward zero.
inline float cut_to_float(double total) {
  const double cut = double_of(bits_of(total) & ~static_cast<std::uint64_t>(below_float));
  const float rounded = static_cast<float>(cut);
  // Only where it is subnormal has it been rounded. The next float toward zero has the next smaller bits.
  const bool is_positive = cut > 0, is_infinite = (bits_of(rounded) & 0x7fffffff) == 0x7f800000;
  const bool is_beyond = (is_positive ? rounded > cut : rounded < cut) && !is_infinite;
  return float_of(bits_of(rounded) - (is_beyond ? 1 : 0));
}

// Two in a register, the first one in the low half.
inline std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<std::uint32_t>(high) << 16;
}
inline std::uint16_t low_of(std::uint32_t pair) { return static_cast<std::uint16_t>(pair); }
inline std::uint16_t high_of(std::uint32_t pair) { return static_cast<std::uint16_t>(pair >> 16); }

}  // namespace tilesmith::emulator
