// What sums become before they are stored: activation(scale * sum + bias) + residual_scale * residual.
#pragma once

#include "element.cuh"
#include "ptx/special.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr bool has_epilogue = plan::epilogue::any;

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

// An element of a type that the parameters tell.
template <typename Value>
__device__ __forceinline__ Value element(const void* first, long long index, ElementType type) {
  if (type == ElementType::bfloat16)
    return widen<float>(static_cast<const bfloat16*>(first)[index]);
  if (type == ElementType::float16)
    return widen<float>(static_cast<const float16*>(first)[index]);
  if (sizeof(Value) == sizeof(double) && type == ElementType::float64)
    return static_cast<const double*>(first)[index];
  return static_cast<const float*>(first)[index];
}

// The epilogue of one matrix. It has two steps: what comes before the activation, and the activation with what comes
// after. What it has is known when the kernel runs: branches are the same for all threads.
template <typename Output, int batch_rank>
class Epilogue {
 public:
  using Value = typename ValueOf<Output>::type;

 private:
  const plan::EpilogueParameters& p_;
  long long residual_first_ = 0;  // of the matrix

 public:
  __device__ __forceinline__ explicit Epilogue(const plan::EpilogueParameters& p) : p_(p) {}

  // Turns to another matrix, by its index in each dimension of the batch.
  template <typename Index>
  __device__ __forceinline__ void move_to(const Index* batch) {
    if constexpr (has_epilogue && batch_rank > 0) {
      residual_first_ = 0;
#pragma unroll
      for (int d = 0; d < batch_rank; ++d) residual_first_ += batch[d] * p_.residual_batch_strides[d];
    }
  }

  // Turns to the matrix that is so many further along one dimension of the batch.
  __device__ __forceinline__ void move_along(int dimension, long long matrices) {
    if constexpr (has_epilogue)
      residual_first_ += matrices * p_.residual_batch_strides[dimension];
  }

  // Whether results are the sums as they are, which a kernel that may have any epilogue finds out at once.
  __device__ __forceinline__ bool is_none() const {
    return !has_epilogue || (p_.bias == nullptr && p_.residual == nullptr && !p_.is_scaled &&
                             p_.activation == static_cast<int>(Activation::none));
  }
  __device__ __forceinline__ bool has_residual() const { return p_.residual != nullptr; }
  __device__ __forceinline__ bool is_bias_of_rows() const { return p_.bias_of == static_cast<int>(BiasOf::rows); }

  // The bias of a row or a column, whichever has one; if none has, what changes no sum, not even the sign of a zero.
  __device__ __forceinline__ Value bias_at(long long which) const {
    return p_.bias == nullptr ? Value(-0.0f)
                              : element<Value>(p_.bias, which * p_.bias_stride, static_cast<ElementType>(p_.bias_type));
  }

  __device__ __forceinline__ long long residual_index(long long m, long long n) const {
    return residual_first_ + m * p_.residual_stride_m + n * p_.residual_stride_n;
  }
  __device__ __forceinline__ Value residual_at(long long m, long long n) const {
    return element<Value>(p_.residual, residual_index(m, n), static_cast<ElementType>(p_.residual_type));
  }
  // The same of a residual that has the output's type.
  __device__ __forceinline__ const Output* residual_from(long long m, long long n) const {
    return static_cast<const Output*>(p_.residual) + residual_index(m, n);
  }
  __device__ __forceinline__ long long residual_step_m() const { return p_.residual_stride_m; }
  __device__ __forceinline__ long long residual_step_n() const { return p_.residual_stride_n; }

  // The first step, of a sum in any type.
  template <typename Sum>
  __device__ __forceinline__ Sum before_activation(Sum sum, Value bias) const {
    return multiply_add<Sum>(p_.is_scaled ? p_.factors.element[0] : 1.0f, sum, bias);
  }
  template <typename Sum>
  __device__ __forceinline__ Sum with_residual(Sum x, Value residual) const {
    return multiply_add<Sum>(p_.is_scaled ? p_.factors.element[1] : 1.0f, residual, x);
  }

  // The second step, but for the residual.
  template <Activation which>
  static __device__ __forceinline__ Value with_activation(Value x) {
    if constexpr (sizeof(Output) < sizeof(float))
      return Rough<which, Output>::activated(x);
    else
      return activated<which>(x);
  }
  // The same of some results together: which activation it is, is asked once.
  template <int count>
  __device__ __forceinline__ void activate(Value (&x)[count]) const {
    switch (static_cast<Activation>(p_.activation)) {
      case Activation::relu:
        return activate_all<Activation::relu>(x);
      case Activation::gelu:
        return activate_all<Activation::gelu>(x);
      case Activation::gelu_tanh:
        return activate_all<Activation::gelu_tanh>(x);
      case Activation::silu:
        return activate_all<Activation::silu>(x);
      default:
        return;
    }
  }

  // What an element needs besides its sum.
  struct Addends {
    Value bias, residual;
  };
  __device__ __forceinline__ Addends addends(long long m, long long n, bool is_inside) const {
    Addends found = {};
    if (has_epilogue && is_inside) {
      found.bias = bias_at(is_bias_of_rows() ? m : n);
      if (has_residual())
        found.residual = residual_at(m, n);
    }
    return found;
  }

  // Both steps.
  template <typename Sum>
  __device__ __forceinline__ Value of(Sum sum, const Addends& addends) const {
    if constexpr (!has_epilogue)
      return static_cast<Value>(sum);
    const Sum x = before_activation(sum, addends.bias);
    if (p_.activation == static_cast<int>(Activation::none))  // then nothing is rounded yet
      return static_cast<Value>(has_residual() ? with_residual(x, addends.residual) : x);
    Value result[] = {static_cast<Value>(x)};
    activate(result);
    return has_residual() ? with_residual(result[0], addends.residual) : result[0];
  }
  // The same of an element that is inside the output.
  template <typename Sum>
  __device__ __forceinline__ Value of(Sum sum, long long m, long long n) const {
    return of(sum, addends(m, n, true));
  }
  // Both steps of many elements. They are activated in groups that take turns in the first place, since registers have
  // no index that is known only when the kernel runs: unrolled, that would be most of what there is to compile.
  template <int group, typename Sum, int count>
  __device__ __forceinline__ void of_all(Value (&results)[count], const Sum (&sums)[count],
                                         const Addends (&addends)[count]) const {
    static_assert(count % group == 0);
    if constexpr (!has_epilogue) {
#pragma unroll
      for (int i = 0; i < count; ++i) results[i] = static_cast<Value>(sums[i]);
    } else if (p_.activation == static_cast<int>(Activation::none)) {  // then nothing is rounded yet
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const Sum x = before_activation(sums[i], addends[i].bias);
        results[i] = static_cast<Value>(has_residual() ? with_residual(x, addends[i].residual) : x);
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) results[i] = static_cast<Value>(before_activation(sums[i], addends[i].bias));
#pragma unroll 1
      for (int turn = 0; turn < count / group; ++turn) {
        Value first[group];
#pragma unroll
        for (int e = 0; e < group; ++e) first[e] = results[e];
        activate(first);
#pragma unroll
        for (int i = 0; i < count; ++i) results[i] = i + group < count ? results[i + group] : first[i + group - count];
      }
      if (has_residual())
#pragma unroll
        for (int i = 0; i < count; ++i) results[i] = with_residual(results[i], addends[i].residual);
    }
  }

 private:
  template <Activation which, int count>
  static __device__ __forceinline__ void activate_all(Value (&x)[count]) {
#pragma unroll
    for (Value& each : x) each = with_activation<which>(each);
  }
};

}  // namespace tilesmith
