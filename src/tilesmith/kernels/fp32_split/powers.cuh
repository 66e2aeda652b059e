// The powers of two by which the rows of an operand (for B: its columns) are scaled.
#pragma once

namespace tilesmith {

constexpr unsigned infinity = 0x7f800000u;
constexpr int no_exponent = -(1 << 20);  // of zeros

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The exponent of a positive number, given as bits. Those without a normal exponent count as the least one.
__device__ __forceinline__ int exponent_of(unsigned bits) { return max(static_cast<int>(bits >> 23), 1) - 127; }

__device__ __forceinline__ unsigned size_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The scale, as an exponent of two, that brings the sample to 2^9.
__device__ __forceinline__ int scale_exponent(unsigned sample) {
  return sample == 0 ? 0 : min(max(9 - exponent_of(sample), -63), 63);
}

// The scale of the full-range terms: as large as sums of `depth` products may be, so that small values keep all their
// bits.
__device__ __forceinline__ int wide_scale_exponent(unsigned peak, int depth) {
  const int digits = 32 - __clz(depth);
  return (124 - digits) / 2 - exponent_of(peak);
}

// What undoes it; `peak` may be that of zeros.
__device__ __forceinline__ int wide_undoing_exponent(unsigned peak, int depth) {
  return peak == 0 ? no_exponent : -wide_scale_exponent(peak, depth);
}

// A power of two of any size that a scale may have, in two factors.
struct WideFactor {
  float first, second;

  __device__ __forceinline__ WideFactor() {}
  __device__ __forceinline__ explicit WideFactor(int exponent)
      : first(power_of_two(min(exponent, 127))), second(power_of_two(exponent - min(exponent, 127))) {}

  __device__ __forceinline__ float times(float x) const { return x * first * second; }
};

}  // namespace tilesmith
