// The emulator's pairs of float16: see cuda/ptx/half.cuh.
#pragma once

#include "half_pair.h"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned half_pair_absolute(unsigned x) { return emulator::half_pair_absolute(x); }
__device__ __forceinline__ unsigned half_pair_min(unsigned x, unsigned y) { return emulator::half_pair_min(x, y); }
__device__ __forceinline__ unsigned half_pair_max_or_nan(unsigned x, unsigned y) {
  return emulator::half_pair_max_or_nan(x, y);
}
__device__ __forceinline__ unsigned half_pair_add(unsigned x, unsigned y) { return emulator::half_pair_add(x, y); }

}  // namespace tilesmith::ptx
