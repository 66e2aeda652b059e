// Tensor-core products of a warpgroup. One instruction, one function; the product itself,
// ptx::wgmma, depends on the plan and is written by jit/source.py.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

// How an operand's tile lies in shared memory. `line_bytes` is the width of its swizzle: 32, 64 or 128.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* tile, unsigned leading_bytes,
                                                                unsigned stride_bytes, int line_bytes) {
  const unsigned long long swizzle = line_bytes == 128 ? 1 : line_bytes == 64 ? 2 : 3;
  return (shared_address(tile) & 0x3ffffu) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4) << 32 | swizzle << 62;
}

// The descriptor of what lies `bytes` further on.
__device__ __forceinline__ unsigned long long descriptor_advance(unsigned long long descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

// Orders earlier accesses to the accumulators before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last `groups` groups of products are done.
template <int groups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

// Keeps a register as it is up to here: products that are under way may read it, which the compiler does not know.
__device__ __forceinline__ void keep_until_here(unsigned x) { asm volatile("" ::"r"(x) : "memory"); }

}  // namespace tilesmith::ptx
