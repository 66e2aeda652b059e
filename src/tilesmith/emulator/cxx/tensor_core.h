// The arithmetic of wgmma.m64nNk16 and mma.m16n8k16 with sums of float32, as measured on Hopper, where it agrees in
// every bit: for each element, the exact products and the sum so far are cut off, toward zero, two bits below the last
// place of the largest exponent, and added; the total is cut off to float32. The exponent of a product is the sum of
// its factors' exponents, and that of a subnormal number is its format's least.
//
// Subnormal results are cut off at 2^-149; what overflows is an infinity; a NaN is 0x7fffffff; a zero is positive.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "interface.h"

namespace tilesmith::emulator {

constexpr int mma_depth = 16;
constexpr int kept_fraction_bits = 25;  // below the largest exponent: float32's 23, and two more
constexpr int least_float_exponent = -126;

// Element k of a row. Those of TF32 are half as many, with what float32 has of more bits cut off; zeros come after
// them.
template <Format format>
inline float decode(const std::uint16_t* row, int k) {
  if constexpr (format == Format::tf32) {
    constexpr std::uint32_t kept = ~((1u << 13) - 1);
    return k < mma_depth / 2 ? float_of((row[2 * k] | static_cast<std::uint32_t>(row[2 * k + 1]) << 16) & kept) : 0.0f;
  }
  return format == Format::half ? half_to_float(row[k]) : bfloat16_to_float(row[k]);
}

// Two to the power of a number's exponent; 0 for zero.
template <Format format>
inline float power_of(float value) {
  constexpr std::uint32_t exponent_bits = 0x7f800000;
  constexpr float least = format == Format::half ? 0x1p-14f : 0x1p-126f;
  const float power = float_of(bits_of(value) & exponent_bits);
  return value == 0.0f ? 0.0f : power < least ? least : power;
}

// Four columns side by side, in vectors that x86_64 and aarch64 both have and g++ and clang++ both know.
constexpr int columns_at_once = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef std::int32_t Integers __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(32)));
typedef std::int64_t LongIntegers __attribute__((vector_size(32)));

// Factors and their powers: of a row of A, and of a few columns of B.
struct RowFactors {
  float values[mma_depth], powers[mma_depth];
};
struct ColumnFactors {
  Floats values[mma_depth], powers[mma_depth];
};

// One element, of any numbers: a double has room for every product.
inline float add_products(float sum, const RowFactors& a, const ColumnFactors& b, int column) {
  double addends[mma_depth + 1], real_total = sum, largest = 0.0;
  for (int k = 0; k < mma_depth; ++k) {
    addends[k] = static_cast<double>(a.values[k]) * b.values[k][column];
    real_total += addends[k];
    largest = std::fmax(largest, static_cast<double>(a.powers[k]) * b.powers[k][column]);
  }
  addends[mma_depth] = sum;
  // With an infinity or a NaN, what is cut off cannot matter.
  if (std::isnan(real_total))
    return float_of(float_nan);
  if (std::isinf(real_total))
    return static_cast<float>(real_total);
  if (sum != 0.0f)
    largest = std::fmax(largest, std::ldexp(1.0, std::max(std::ilogb(sum), least_float_exponent)));
  if (largest == 0.0)
    return 0.0f;
  const int shift = kept_fraction_bits - std::ilogb(largest);
  std::int64_t total = 0;
  for (const double addend : addends) total += static_cast<std::int64_t>(std::ldexp(addend, shift));
  return cut_to_float(std::ldexp(static_cast<double>(total), -shift));
}

// What a fast sum needs to know of factors: the exponents' bits of the least one that is not zero, and the largest.
struct ExponentRange {
  int least = 1000, largest = 0;

  void include(float value) {
    const std::uint32_t size = bits_of(value) & 0x7fffffff;
    const int exponent = static_cast<int>(size >> 23);
    if (size != 0)
      least = exponent == 0 ? -1000 : exponent < least ? exponent : least;
    largest = exponent > largest ? exponent : largest;
  }
};

constexpr int exponent_bias = 127;
constexpr int least_fast_exponent = exponent_bias - 100;  // of a product

// Whether a float has room for every product, and for it as a multiple of any unit that it may be added in.
inline bool is_fast(const ExponentRange& a, const ExponentRange& b) {
  return a.largest < 255 && b.largest < 255 && a.least + b.least >= exponent_bias + least_fast_exponent &&
         a.largest + b.largest <= 2 * exponent_bias + 100;
}

// A few elements of a row, for factors that are fast and finite sums.
inline void add_products_fast(Floats& sum, const RowFactors& a, const ColumnFactors& b) {
  Integers largest = (Integers)sum & 0x7f800000;
  for (int k = 0; k < mma_depth; ++k) {
    const Integers power = (Integers)(a.powers[k] * b.powers[k]);
    largest = power > largest ? power : largest;
  }
  const Integers least = Integers{} + (least_fast_exponent << 23);
  const Integers exponent = largest > least ? largest : least;
  const Floats unit = (Floats)(exponent - (kept_fraction_bits << 23));
  const Floats scale = (Floats)(((2 * exponent_bias + kept_fraction_bits) << 23) - exponent);

  // Each product is below 4 units of the largest exponent: 32 bits hold half of them, and the sum.
  Integers first = __builtin_convertvector(sum * scale, Integers), second = {};
  for (int k = 0; k < mma_depth / 2; ++k) first += __builtin_convertvector(a.values[k] * b.values[k] * scale, Integers);
  for (int k = mma_depth / 2; k < mma_depth; ++k)
    second += __builtin_convertvector(a.values[k] * b.values[k] * scale, Integers);
  const Doubles total = __builtin_convertvector(first, Doubles) + __builtin_convertvector(second, Doubles);
  const Doubles cut = (Doubles)((LongIntegers)total & ~below_float);
  // A sum below the least product has met only zeros.
  sum = largest < least ? sum + 0.0f : __builtin_convertvector(cut, Floats) * unit;
}

// sum += a b, or sum = a b, where `sum` is rows x n, `a` is rows x 16 and `b` is n x 16, each row by row.
template <Format format, int rows>
inline void multiply_add(float* sum, const std::uint16_t* a, const std::uint16_t* b, int n, bool accumulate) {
  RowFactors of_rows[rows];
  ExponentRange a_ranges[rows];
  for (int m = 0; m < rows; ++m)
    for (int k = 0; k < mma_depth; ++k) {
      const float value = decode<format>(a + m * mma_depth, k);
      of_rows[m].values[k] = value;
      of_rows[m].powers[k] = power_of<format>(value);
      a_ranges[m].include(value);
    }
  for (int first = 0; first < n; first += columns_at_once) {
    ColumnFactors columns;
    ExponentRange b_range;
    for (int k = 0; k < mma_depth; ++k)
      for (int j = 0; j < columns_at_once; ++j) {
        const float value = decode<format>(b + (first + j) * mma_depth, k);
        columns.values[k][j] = value;
        columns.powers[k][j] = power_of<format>(value);
        b_range.include(value);
      }
    for (int m = 0; m < rows; ++m) {
      float* to = sum + m * n + first;
      Floats sums = {};
      if (accumulate)
        std::memcpy(&sums, to, sizeof sums);
      bool is_finite = true;
      for (int j = 0; j < columns_at_once; ++j) is_finite &= std::isfinite(sums[j]);
      if (is_finite && is_fast(a_ranges[m], b_range))
        add_products_fast(sums, of_rows[m], columns);
      else
        for (int j = 0; j < columns_at_once; ++j) sums[j] = add_products(sums[j], of_rows[m], columns, j);
      std::memcpy(to, &sums, sizeof sums);
    }
  }
}

template <int rows>
inline void multiply_add(Format format, float* sum, const std::uint16_t* a, const std::uint16_t* b, int n,
                         bool accumulate) {
  if (format == Format::tf32)
    multiply_add<Format::tf32, rows>(sum, a, b, n, accumulate);
  else if (format == Format::bfloat16)
    multiply_add<Format::bfloat16, rows>(sum, a, b, n, accumulate);
  else
    multiply_add<Format::half, rows>(sum, a, b, n, accumulate);
}

}  // namespace tilesmith::emulator
