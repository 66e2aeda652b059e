// The emulator's tensor-core products: see cuda/ptx/wgmma.cuh, and jit/source.py for ptx::wgmma.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned long long matrix_descriptor(const void* tile, unsigned leading_bytes,
                                                                unsigned stride_bytes, int line_bytes) {
  const unsigned long long swizzle = line_bytes == 128 ? 1 : line_bytes == 64 ? 2 : 3;
  return (shared_address(tile) & 0x3ffffu) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4) << 32 | swizzle << 62;
}

__device__ __forceinline__ unsigned long long descriptor_advance(unsigned long long descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_fence() { emulator::product_fence(); }
__device__ __forceinline__ void wgmma_commit() { emulator::product_commit(); }
template <int groups>
__device__ __forceinline__ void wgmma_wait() {
  emulator::product_wait(groups);
}

// Registers under a product are checked where they are written.
__device__ __forceinline__ void keep_until_here(unsigned) {}

}  // namespace tilesmith::ptx
