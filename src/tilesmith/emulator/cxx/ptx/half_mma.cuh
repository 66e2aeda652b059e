// The emulator's product of 16-bit operands: see cuda/ptx/half_mma.cuh. Sums are exact, and cut off to float32.
#pragma once

#include "formats.h"

namespace tilesmith::ptx {

// As one of doubles, whose lanes have other places of K than these: the same ones of A and B, so it does not matter.
template <typename Wide>
__device__ __forceinline__ void mma_pairs(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], Wide wide) {
  const auto low = [&](unsigned bits) { return static_cast<double>(wide(static_cast<unsigned short>(bits))); };
  const auto high = [&](unsigned bits) { return static_cast<double>(wide(static_cast<unsigned short>(bits >> 16))); };
  const emulator::DoubleSums found =
      emulator::dmma(sum[0], sum[1], sum[2], sum[3], low(a[0]), low(a[1]), high(a[0]), high(a[1]), low(a[2]), low(a[3]),
                     high(a[2]), high(a[3]), low(b[0]), high(b[0]), low(b[1]), high(b[1]));
  for (int i = 0; i < 4; ++i) sum[i] = emulator::cut_to_float(found.at[i]);
}

__device__ __forceinline__ void mma_float16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_pairs(sum, a, b, emulator::half_to_float);
}
__device__ __forceinline__ void mma_bfloat16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_pairs(sum, a, b, emulator::bfloat16_to_float);
}

}  // namespace tilesmith::ptx
