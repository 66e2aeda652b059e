// The element types: how each is stored, and what it is multiplied and summed in.
#pragma once

#include "ptx/convert.cuh"
#include "vector.cuh"

namespace tilesmith {

// 16-bit floats are bit patterns in memory and floats in arithmetic.
struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};

// Widening to the type of the arithmetic. Integers are summed as unsigned numbers, which
// wrap around as two's complement does; sign extension comes first, so the low bits of a
// product are those of the signed one.
template <typename Accumulator, typename Element>
__device__ __forceinline__ Accumulator widen(Element x) {
  return static_cast<Accumulator>(x);
}
template <>
__device__ __forceinline__ float widen<float, float16>(float16 x) {
  return ptx::half_to_float(x.bits);
}
template <>
__device__ __forceinline__ float widen<float, bfloat16>(bfloat16 x) {
  return ptx::bfloat16_to_float(x.bits);
}

// Narrowing a finished sum to the type that is stored: floats round to nearest even,
// integers keep their low bits.
template <typename Element, typename Accumulator>
__device__ __forceinline__ Element narrow(Accumulator x) {
  return static_cast<Element>(x);
}
template <>
__device__ __forceinline__ float16 narrow<float16, float>(float x) {
  return {ptx::float_to_half(x)};
}
template <>
__device__ __forceinline__ bfloat16 narrow<bfloat16, float>(float x) {
  return {ptx::float_to_bfloat16(x)};
}

// sum + x * y, rounded once where the type rounds at all.
template <typename Accumulator>
__device__ __forceinline__ Accumulator multiply_add(Accumulator x, Accumulator y, Accumulator sum) {
  return x * y + sum;
}
template <>
__device__ __forceinline__ float multiply_add<float>(float x, float y, float sum) {
  return __fmaf_rn(x, y, sum);
}
template <>
__device__ __forceinline__ double multiply_add<double>(double x, double y, double sum) {
  return __fma_rn(x, y, sum);
}

}  // namespace tilesmith
