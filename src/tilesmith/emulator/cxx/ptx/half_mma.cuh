// The emulator's product of 16-bit operands: see cuda/ptx/half_mma.cuh.
#pragma once

namespace tilesmith::ptx {

// All by value, so that the registers of the kernel need not be in memory.
__device__ __forceinline__ void mma(emulator::Format format, float (&sum)[4], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
  const emulator::FloatSums found =
      emulator::mma(format, sum[0], sum[1], sum[2], sum[3], a[0], a[1], a[2], a[3], b[0], b[1]);
  for (int i = 0; i < 4; ++i) sum[i] = found.at[i];
}

__device__ __forceinline__ void mma_float16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma(emulator::Format::half, sum, a, b);
}
__device__ __forceinline__ void mma_bfloat16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma(emulator::Format::bfloat16, sum, a, b);
}

// The other half of K is zeros.
__device__ __forceinline__ void mma_float16_of_8(float (&sum)[4], unsigned a0, unsigned a1, unsigned b) {
  mma(emulator::Format::half, sum, {a0, a1, 0, 0}, {b, 0});
}

__device__ __forceinline__ void mma_float16_from_zero(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  for (float& each : sum) each = 0.0f;
  mma_float16(sum, a, b);
}
__device__ __forceinline__ void mma_bfloat16_from_zero(float (&sum)[4], const unsigned (&a)[4],
                                                       const unsigned (&b)[2]) {
  for (float& each : sum) each = 0.0f;
  mma_bfloat16(sum, a, b);
}

}  // namespace tilesmith::ptx
