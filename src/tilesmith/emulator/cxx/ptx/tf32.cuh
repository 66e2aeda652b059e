// The emulator's product of TF32: see cuda/ptx/tf32.cuh. Sums are exact, and cut off to float32.
#pragma once

#include "formats.h"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned to_tf32(float x) {
#if __CUDA_ARCH__ >= 900
  return emulator::bits_to_tf32(emulator::bits_of(x));
#else
  return emulator::bits_to_tf32_away(emulator::bits_of(x));
#endif
}

__device__ __forceinline__ void mma_tf32(float (&sum)[4], const unsigned (&a)[8], const unsigned (&b)[4]) {
  const auto wide = [](unsigned bits) { return static_cast<double>(emulator::float_of(bits)); };
  const emulator::DoubleSums found =
      emulator::dmma(sum[0], sum[1], sum[2], sum[3], wide(a[0]), wide(a[1]), wide(a[2]), wide(a[3]), wide(a[4]),
                     wide(a[5]), wide(a[6]), wide(a[7]), wide(b[0]), wide(b[1]), wide(b[2]), wide(b[3]));
  for (int i = 0; i < 4; ++i) sum[i] = emulator::cut_to_float(found.at[i]);
}

}  // namespace tilesmith::ptx
