// The emulator's product of bytes: see cuda/ptx/int8_mma.cuh.
#pragma once

namespace tilesmith::ptx {

// All by value, so that the registers of the kernel need not be in memory.
__device__ __forceinline__ void mma_of_bytes(bool are_signed, int (&sum)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
  const emulator::IntegerSums found =
      emulator::mma_of_bytes(are_signed, sum[0], sum[1], sum[2], sum[3], a[0], a[1], a[2], a[3], b[0], b[1]);
  for (int i = 0; i < 4; ++i) sum[i] = found.at[i];
}

__device__ __forceinline__ void mma_int8(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_of_bytes(true, sum, a, b);
}
__device__ __forceinline__ void mma_uint8(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_of_bytes(false, sum, a, b);
}

}  // namespace tilesmith::ptx
