// An epilogue of which the parameters say what it has, the activation too: for elements, one by one or some together.
#pragma once

#include "kernels/activation.cuh"
#include "kernels/epilogue.cuh"

namespace tilesmith {

template <typename Output, int batch_rank>
class WholeEpilogue : public Epilogue<Output, batch_rank> {
  using Base = Epilogue<Output, batch_rank>;
  using Base::p_;
  using Base::residual_first_;

 public:
  using Base::Base;
  using Base::before_activation;
  using Base::bias_at;
  using Base::with_residual;
  using typename Base::Value;

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

  __device__ __forceinline__ Value residual_at(long long m, long long n) const {
    return element<Value>(p_.residual, this->residual_index(m, n), static_cast<ElementType>(p_.residual_type));
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
    for (Value& each : x) each = with_activation<which, Output>(each);
  }
};

}  // namespace tilesmith
