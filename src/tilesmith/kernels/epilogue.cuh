// What sums become before they are stored: activation(scale * sum + bias) + residual_scale * residual. This is all of
// it but the activation. An epilogue of which only the kernel's parameters say what it has: whole_epilogue.cuh.
#pragma once

#include "element.cuh"

namespace tilesmith {

constexpr bool has_epilogue = plan::epilogue::any;

// The type that activations are computed in, and results of a type are narrowed from. Integers have no epilogue.
template <typename Output>
struct ValueOf {
  using type = float;
};
template <>
struct ValueOf<double> {
  using type = double;
};
template <>
struct ValueOf<int> {
  using type = int;
};
template <>
struct ValueOf<signed char> {
  using type = int;
};
template <>
struct ValueOf<unsigned char> {
  using type = int;
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

 protected:
  const plan::EpilogueParameters& p_;
  long long residual_first_ = 0;  // of the matrix

  __device__ __forceinline__ long long residual_index(long long m, long long n) const {
    return residual_first_ + m * p_.residual_stride_m + n * p_.residual_stride_n;
  }

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

  // The bias of a row or a column, whichever has one; if none has, what changes no sum, not even the sign of a zero.
  __device__ __forceinline__ Value bias_at(long long which) const {
    return p_.bias == nullptr ? Value(-0.0f)
                              : element<Value>(p_.bias, which * p_.bias_stride, static_cast<ElementType>(p_.bias_type));
  }

  // Where a residual of the output's type has an element.
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
};

}  // namespace tilesmith
