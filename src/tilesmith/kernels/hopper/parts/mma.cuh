// How a consumer multiplies a step along K: the tensor cores read A and B in shared memory. The products of one step
// run while those of the next are issued.
#pragma once

#include "kernels/hopper/common.cuh"
#include "ptx/wgmma.cuh"

namespace tilesmith {

using ATile = OperandTile<plan::tile_m, plan::a_mn_major, 1>;
using Ring = Pipeline<plan::stages, consumers, plan::cluster>;

class Products {
  Ring& ring_;
  const unsigned char* const a_;  // this consumer's rows in the first stage
  const unsigned char* const b_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  Ring::Position at_, previous_;

  // Starts the products of the stage that is next.
  __device__ __forceinline__ void multiply(bool accumulate) {
    ring_.wait_full(at_);
    const auto a = ATile::descriptor(a_ + at_.stage * ATile::bytes);
    const auto b = BTile::descriptor(b_ + b_stage(at_.stage) * BTile::bytes);
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

  __device__ __forceinline__ Products(Ring& ring, const unsigned char* a_stages, const unsigned char* b_stages,
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
