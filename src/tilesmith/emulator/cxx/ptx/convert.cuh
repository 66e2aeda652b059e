// The emulator's conversions: see cuda/ptx/convert.cuh.
#pragma once

#include "formats.h"

namespace tilesmith::ptx {

__device__ __forceinline__ float half_to_float(unsigned short bits) { return emulator::half_to_float(bits); }
__device__ __forceinline__ unsigned short float_to_half(float value) { return emulator::float_to_half(value); }
__device__ __forceinline__ float bfloat16_to_float(unsigned short bits) { return emulator::bfloat16_to_float(bits); }
__device__ __forceinline__ unsigned short float_to_bfloat16(float value) { return emulator::float_to_bfloat16(value); }

__device__ __forceinline__ unsigned float_to_half_pair(float low, float high) {
  return emulator::pair_of(emulator::float_to_half(low), emulator::float_to_half(high));
}
__device__ __forceinline__ unsigned float_to_bfloat16_pair(float low, float high) {
  return emulator::pair_of(emulator::float_to_bfloat16(low), emulator::float_to_bfloat16(high));
}

}  // namespace tilesmith::ptx
