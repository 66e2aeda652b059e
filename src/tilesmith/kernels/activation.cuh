// The activations.
#pragma once

#include "element.cuh"
#include "ptx/special.cuh"

namespace tilesmith {

// The functions of each type.
__device__ __forceinline__ float error_function(float x) { return erff(x); }
__device__ __forceinline__ double error_function(double x) { return erf(x); }
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// x / y, for a y from 1 to infinity. The operator has a function call for other cases, and where there is one, no
// product may be under way.
__device__ __forceinline__ float quotient(float x, float y) {
  const float inverse = ptx::reciprocal(y), rough = x * inverse;
  const bool is_finite = y < 8.5e37f && fabsf(rough) < 3.4e38f;
  return is_finite ? __fmaf_rn(__fmaf_rn(-rough, y, x), inverse, rough) : rough;
}
__device__ __forceinline__ double quotient(double x, double y) { return x / y; }

template <Activation which, typename Value>
__device__ __forceinline__ Value activated(Value x) {
  if constexpr (which == Activation::relu)
    return x < Value(0) ? Value(0) : x;
  else if constexpr (which == Activation::gelu)
    return x * Value(0.5) * (Value(1) + error_function(x * Value(0.70710678118654752440)));
  else if constexpr (which == Activation::gelu_tanh)  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
    return quotient(x, Value(1) + exponential(Value(-1.5957691216057307117) * (x + Value(0.044715) * x * x * x)));
  else if constexpr (which == Activation::silu)
    return quotient(x, Value(1) + exponential(-x));
  else
    return x;
}

// The same for results of 16 bits, in half of the instructions: with an error that is small beside their rounding's.
template <Activation which, typename Output>
struct Rough {
  static __device__ __forceinline__ float activated(float x) { return tilesmith::activated<which>(x); }
};
template <typename Output>
struct Rough<Activation::silu, Output> {
  static __device__ __forceinline__ float activated(float x) {
    return x * ptx::reciprocal(1.0f + ptx::power_of_two(-1.4426950f * x));
  }
};
template <typename Output>
struct Rough<Activation::gelu_tanh, Output> {
  static __device__ __forceinline__ float activated(float x) {
    return x * ptx::reciprocal(1.0f + ptx::power_of_two(x * __fmaf_rn(-0.10294324f, x * x, -2.3022082f)));
  }
};
// x times the normal distribution, whose tail beyond |x| is formula 7.1.26 of Abramowitz and Stegun: to 1e-7.
template <typename Output>
struct Rough<Activation::gelu, Output> {
  static __device__ __forceinline__ float activated(float x) {
    const float t = ptx::reciprocal(__fmaf_rn(fabsf(x), 0.23164189f, 1.0f));
    float tail = __fmaf_rn(t, 0.53070271f, -0.72657601f);
    tail = __fmaf_rn(t, tail, 0.71070687f);
    tail = __fmaf_rn(t, tail, -0.14224837f);
    tail = __fmaf_rn(t, tail, 0.12741479f);
    const float y = x * 0.84932180f;  // exp(-x^2 / 2) is 2^(-y^2)
    tail *= t * ptx::power_of_two(-y * y);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
};
// The distribution is 1 / (1 + 2^(-x p(x^2))), with the p of degree four that has the least error: 4e-4 of the result
// down to an x of -3, and 5e-5 of 1 anywhere.
template <>
struct Rough<Activation::gelu, bfloat16> {
  static __device__ __forceinline__ float activated(float x) {
    const float s = x * x;
    float p = __fmaf_rn(s, -9.2947681e-7f, 2.4842102e-5f);
    p = __fmaf_rn(s, p, 9.1849716e-4f);
    p = __fmaf_rn(s, p, -0.10697515f);
    p = __fmaf_rn(s, p, -2.3006299f);
    return x * ptx::reciprocal(1.0f + ptx::power_of_two(x * p));
  }
};

// Of what is stored as an Output.
template <Activation which, typename Output, typename Value>
__device__ __forceinline__ Value with_activation(Value x) {
  if constexpr (sizeof(Output) < sizeof(float))
    return Rough<which, Output>::activated(x);
  else
    return activated<which>(x);
}

}  // namespace tilesmith
