// Two float32 values as sums of 16-bit terms, two numbers in a register.
#pragma once

#include "kernels/fp32_split/powers.cuh"
#include "ptx/convert.cuh"

namespace tilesmith {

template <int terms>
struct TermPair {
  unsigned term[terms];
  float left[2];  // what the terms leave of the values
};

template <int terms>
__device__ __forceinline__ TermPair<terms> half_terms(float x, float y) {
  TermPair<terms> pair;
  pair.left[0] = x;
  pair.left[1] = y;
#pragma unroll
  for (int p = 0; p < terms; ++p) {
    pair.term[p] = ptx::float_to_half_pair(pair.left[0], pair.left[1]);
    pair.left[0] -= ptx::half_to_float(static_cast<unsigned short>(pair.term[p]));
    pair.left[1] -= ptx::half_to_float(static_cast<unsigned short>(pair.term[p] >> 16));
  }
  return pair;
}

// Scaled values from here on, as float16: two terms leave no more than 2^-22 of them, and one no more than 2^-11.
template <int terms>
constexpr unsigned safe_half = terms == 1 ? 0x0400 : 0x3000;  // 2^-14, 2^-3

// Whether a value is inexact: see range_check.cuh. `first` is the size of its first term. What is not left may have
// vanished when the value was scaled.
template <int terms>
__device__ __forceinline__ bool is_inexact(unsigned first, float left, float value) {
  return first < safe_half<terms> && (left != 0.0f || (first == 0 && value != 0.0f));
}

// Infinities and NaNs are zeros here: see kind_pair.
template <int terms>
__device__ __forceinline__ TermPair<terms> bfloat16_terms(float x, float y, const WideFactor& x_factor,
                                                          const WideFactor& y_factor) {
  TermPair<terms> pair;
  pair.left[0] = size_of(x) >= infinity ? 0.0f : x_factor.times(x);
  pair.left[1] = size_of(y) >= infinity ? 0.0f : y_factor.times(y);
#pragma unroll
  for (int p = 0; p < terms; ++p) {
    pair.term[p] = ptx::float_to_bfloat16_pair(pair.left[0], pair.left[1]);
    pair.left[0] -= __uint_as_float(pair.term[p] << 16);
    pair.left[1] -= __uint_as_float(pair.term[p] & 0xffff0000u);
  }
  return pair;
}

// The upper half of a float32 that tells what products with the value are: itself if it is an infinity or a NaN, zero,
// or one with its sign.
__device__ __forceinline__ unsigned kind(float x) {
  const unsigned bits = __float_as_uint(x);
  if (size_of(x) >= infinity)
    return bits | (bits << 9 ? 0x400000u : 0u);
  return x == 0.0f ? 0u : (bits & 0x80000000u) | 0x3f800000u;
}
__device__ __forceinline__ unsigned kind_pair(float x, float y) { return kind(x) >> 16 | (kind(y) & 0xffff0000u); }

}  // namespace tilesmith
