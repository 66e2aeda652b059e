// The products of a tile: one consumer's loop over the stages of the ring. The products of one stage
// run while those of the next are issued.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/wgmma.cuh"
#include "tile.cuh"

namespace tilesmith {

// `stationary_b`: all stages use one tile of B.
template <typename ATile, typename BTile, typename Ring, int elements, bool stationary_b>
class Accumulation {
  Ring& ring_;
  const unsigned char* const a_;  // this consumer's rows in the first stage
  const unsigned char* const b_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  typename Ring::Position at_, previous_;

  // Starts the products of the stage that is next.
  __device__ __forceinline__ void multiply(bool accumulate) {
    ring_.wait_full(at_);
    const auto a = ATile::descriptor(a_ + at_.stage * ATile::bytes);
    const auto b = BTile::descriptor(b_ + (stationary_b ? 0 : at_.stage * BTile::bytes));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_k / wgmma_k; ++step)
      ptx::wgmma(sum, ptx::descriptor_advance(a, step * ATile::step_bytes),
                 ptx::descriptor_advance(b, step * BTile::step_bytes), accumulate || step > 0);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void advance() {
    previous_ = at_;
    at_.advance();
  }

 public:
  float sum[elements];

  __device__ __forceinline__ Accumulation(Ring& ring, const unsigned char* a_stages, const unsigned char* b_stages,
                                          int consumer)
      : ring_(ring), a_(a_stages + consumer * ATile::group_bytes), b_(b_stages) {}

  // The first step of a tile along K.
  __device__ __forceinline__ void first() {
    multiply(false);
    advance();
  }
  // Each of the others.
  __device__ __forceinline__ void next() {
    multiply(true);
    ptx::wgmma_wait<1>();
    ring_.release(previous_, thread_);
    advance();
  }
  // After the last one: then the sums are there.
  __device__ __forceinline__ void finish() {
    ptx::wgmma_wait<0>();
    ring_.release(previous_, thread_);
  }
};

}  // namespace tilesmith
