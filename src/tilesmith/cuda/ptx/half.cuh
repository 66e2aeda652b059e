// Arithmetic on pairs of float16 in one register. One instruction, one function.
#pragma once

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned half_pair_absolute(unsigned x) {
  unsigned y;
  asm("abs.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ unsigned half_pair_min(unsigned x, unsigned y) {
  unsigned z;
  asm("min.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

// A NaN on either side stays one.
__device__ __forceinline__ unsigned half_pair_max_or_nan(unsigned x, unsigned y) {
  unsigned z;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

__device__ __forceinline__ unsigned half_pair_add(unsigned x, unsigned y) {
  unsigned z;
  asm("add.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

}  // namespace tilesmith::ptx
