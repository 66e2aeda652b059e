// The emulator's product of doubles: see cuda/ptx/dmma.cuh.
#pragma once

namespace tilesmith::ptx {

// All by value, so that the registers of the kernel need not be in memory.
__device__ __forceinline__ void dmma(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
  const emulator::DoubleSums found = emulator::dmma(sum[0], sum[1], sum[2], sum[3], a[0], a[1], a[2], a[3], a[4], a[5],
                                                    a[6], a[7], b[0], b[1], b[2], b[3]);
  for (int i = 0; i < 4; ++i) sum[i] = found.at[i];
}

}  // namespace tilesmith::ptx
