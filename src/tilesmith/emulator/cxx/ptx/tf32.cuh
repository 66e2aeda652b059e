// The emulator's product of TF32: see cuda/ptx/tf32.cuh.
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
  for (int i = 0; i < 2; ++i) {
    const emulator::FloatSums found = emulator::mma(emulator::Format::tf32, sum[0], sum[1], sum[2], sum[3], a[4 * i],
                                                    a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2 * i], b[2 * i + 1]);
    for (int j = 0; j < 4; ++j) sum[j] = found.at[j];
  }
}

}  // namespace tilesmith::ptx
