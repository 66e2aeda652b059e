// The emulator's global memory has no cache: see cuda/ptx/store_once.cuh.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ void store_once(float* to, float value) { *to = value; }
__device__ __forceinline__ void store_once(Vector<float, 4>* to, const Vector<float, 4>& value) { *to = value; }

}  // namespace tilesmith::ptx
