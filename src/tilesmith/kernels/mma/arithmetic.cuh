// What is multiplied, and in what it is summed.
#pragma once

#include "element.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "ptx/dmma.cuh"
#include "ptx/half_mma.cuh"
#include "ptx/int8_mma.cuh"
#include "ptx/tf32.cuh"

namespace tilesmith {

// What the tensor cores take of a lane's quad of a row or column, for sums of a type.
template <typename, typename>
struct Arithmetic;
template <typename Element>
struct ArithmeticOfDoubles {
  using Factor = double;
  static constexpr int factors = lane_k;
  static constexpr bool cuts_off = false;
  static __device__ __forceinline__ double factor(const Quad<Element>& quad, int i) { return quad.element[i]; }
  static __device__ __forceinline__ void multiply_add(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
    ptx::dmma(sum, a, b);
  }
};
template <>
struct Arithmetic<float, double> : ArithmeticOfDoubles<float> {};
template <>
struct Arithmetic<double, double> : ArithmeticOfDoubles<double> {};
template <>
struct Arithmetic<float, float> {
  using Factor = unsigned;
  static constexpr int factors = lane_k;
  static constexpr bool cuts_off = true;
  static __device__ __forceinline__ unsigned factor(const Quad<float>& quad, int i) {
    return ptx::to_tf32(quad.element[i]);
  }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[8], const unsigned (&b)[4]) {
    ptx::mma_tf32(sum, a, b);
  }
};
template <typename Half>
struct ArithmeticOfPairs {
  using Factor = unsigned;
  static constexpr int factors = lane_k / 2;
  static constexpr bool cuts_off = false;  // it does, but much less than results are rounded
  static __device__ __forceinline__ unsigned factor(const Quad<Half>& quad, int i) {
    return quad.element[2 * i].bits | static_cast<unsigned>(quad.element[2 * i + 1].bits) << 16;
  }
};
template <>
struct Arithmetic<float16, float> : ArithmeticOfPairs<float16> {
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (plan::product_k == 16) {
      ptx::mma_float16(sum, a, b);
    } else {
      ptx::mma_float16_of_8(sum, a[0], a[1], b[0]);
      ptx::mma_float16_of_8(sum, a[2], a[3], b[1]);
    }
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_float16_from_zero(sum, a, b);
  }
};
template <>
struct Arithmetic<bfloat16, float> : ArithmeticOfPairs<bfloat16> {
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_bfloat16(sum, a, b);
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_bfloat16_from_zero(sum, a, b);
  }
};
// Pairs of 8 bits, by matrices alone.
template <>
struct Arithmetic<short, int> {
  static __device__ __forceinline__ void multiply_add(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_int8(sum, a, b);
  }
};
template <>
struct Arithmetic<unsigned short, int> {
  static __device__ __forceinline__ void multiply_add(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_uint8(sum, a, b);
  }
};
}  // namespace tilesmith
