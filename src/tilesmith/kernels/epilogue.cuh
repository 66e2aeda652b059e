// What sums become before they are stored: activation(scale * sum + bias) + residual_scale * residual.
#pragma once

#include "element.cuh"
#include "ptx/special.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr Activation activation = plan::epilogue::activation;
constexpr BiasOf bias_of = plan::epilogue::bias_of;
using Residual = plan::epilogue::Residual;
constexpr bool has_residual = plan::epilogue::has_residual;
constexpr bool has_epilogue =
    plan::epilogue::is_scaled || has_residual || activation != Activation::none || bias_of != BiasOf::nothing;
static_assert(has_residual || !plan::epilogue::residual_pairs);

// The type that activations are computed in, and results of a type are rounded from.
template <typename Output>
struct ValueOf {
  using type = float;
};
template <>
struct ValueOf<double> {
  using type = double;
};

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

// The epilogue of one matrix. It has two steps: what comes before the activation, and the activation with what comes
// after. Without one, all is done in the first step, where nothing is rounded yet.
template <typename Output, int batch_rank>
class Epilogue {
 public:
  using Value = typename ValueOf<Output>::type;
  static constexpr bool is_in_two_steps = activation != Activation::none;

 private:
  const plan::EpilogueParameters& p_;
  long long residual_first_ = 0;  // of the matrix

  template <typename Sum>
  __device__ __forceinline__ Sum with_residual(Sum x, Residual residual) const {
    const Sum wide = widen<Sum>(residual);
    return plan::epilogue::is_scaled ? multiply_add<Sum>(p_.factors.element[1], wide, x) : x + wide;
  }

 public:
  __device__ __forceinline__ explicit Epilogue(const plan::EpilogueParameters& p) : p_(p) {}

  // Turns to another matrix, by its index in each dimension of the batch.
  template <typename Index>
  __device__ __forceinline__ void move_to(const Index* batch) {
    if constexpr (has_residual && batch_rank > 0) {
      residual_first_ = 0;
#pragma unroll
      for (int d = 0; d < batch_rank; ++d) residual_first_ += batch[d] * p_.residual_batch_strides[d];
    }
  }

  // The bias of a row or a column, whichever has one.
  __device__ __forceinline__ Value bias_at(long long which) const {
    if constexpr (bias_of == BiasOf::nothing)
      return 0;
    else
      return widen<Value>(p_.bias[which * p_.bias_stride]);
  }

  __device__ __forceinline__ const Residual* residual_at(long long m, long long n) const {
    return p_.residual + residual_first_ + m * p_.residual_stride_m + n * p_.residual_stride_n;
  }
  __device__ __forceinline__ long long residual_step_m() const { return p_.residual_stride_m; }
  // Of two neighbours in a row, `columns` after the first one's.
  __device__ __forceinline__ Vector<Residual, 2> residuals(const Residual* first, int columns, bool has_second) const {
    if constexpr (plan::epilogue::residual_pairs) {
      return *reinterpret_cast<const Vector<Residual, 2>*>(first + columns);
    } else {
      const Residual* const own = first + columns * p_.residual_stride_n;
      return {own[0], has_second ? own[p_.residual_stride_n] : Residual{}};
    }
  }

  // The first step, of a sum in any type.
  template <typename Sum>
  __device__ __forceinline__ Sum before_activation(Sum sum, Value bias) const {
    const Sum wide = bias;
    if constexpr (plan::epilogue::is_scaled)
      return bias_of == BiasOf::nothing ? sum * Sum(p_.factors.element[0])
                                        : multiply_add<Sum>(p_.factors.element[0], sum, wide);
    else
      return bias_of == BiasOf::nothing ? sum : sum + wide;
  }
  template <typename Sum>
  __device__ __forceinline__ Sum before_activation(Sum sum, Value bias, Residual residual) const {
    return with_residual(before_activation(sum, bias), residual);
  }

  // The second step.
  __device__ __forceinline__ Value after(Value x) const {
    if constexpr (sizeof(Output) < sizeof(float))
      return Rough<activation, Output>::activated(x);
    else
      return activated<activation>(x);
  }
  __device__ __forceinline__ Value after(Value x, Residual residual) const { return with_residual(after(x), residual); }

  // What an element needs besides its sum.
  struct Addends {
    Value bias;
    Residual residual;
  };
  __device__ __forceinline__ Addends addends(long long m, long long n, bool is_inside) const {
    Addends found = {};
    if constexpr (bias_of != BiasOf::nothing)
      if (is_inside)
        found.bias = bias_at(bias_of == BiasOf::rows ? m : n);
    if constexpr (has_residual)
      if (is_inside)
        found.residual = *residual_at(m, n);
    return found;
  }

  // Both steps.
  template <typename Sum>
  __device__ __forceinline__ Value of(Sum sum, const Addends& x) const {
    if constexpr (!has_epilogue)
      return static_cast<Value>(sum);
    else if constexpr (!has_residual)
      return after(before_activation(sum, x.bias));
    else if constexpr (is_in_two_steps)
      return after(before_activation(sum, x.bias), x.residual);
    else
      return before_activation(sum, x.bias, x.residual);
  }
  // The same of an element that is inside the output.
  template <typename Sum>
  __device__ __forceinline__ Value of(Sum sum, long long m, long long n) const {
    return of(sum, addends(m, n, true));
  }
};

}  // namespace tilesmith
