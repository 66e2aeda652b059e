// The special functions of the hardware, emulated: see cuda/ptx/special.cuh. The hardware's last bit differs.
#pragma once

namespace tilesmith::ptx {

__device__ __forceinline__ float reciprocal(float x) { return 1.0f / x; }
__device__ __forceinline__ float power_of_two(float x) { return __builtin_exp2f(x); }

}  // namespace tilesmith::ptx
