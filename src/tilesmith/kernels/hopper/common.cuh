// What the kernels of this family share: the sizes of the plan, and the types that follow from them.
#pragma once

#include "batch.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

using plan::Output;
using plan::Parameters;

constexpr int consumers = plan::tile_m / wgmma_m;
constexpr int dims = 2 + plan::batch_dims;
constexpr bool several = plan::out_batch_dims > 0;  // matrices or parts of K
static_assert(consumers * wgmma_m == plan::tile_m);
static_assert((consumers + 1) * warpgroup_threads == plan::threads);

// What a consumer's thread holds of a tile. Element 4 j + 2 h + e is of row lane / 4 + 8 h of its warp's rows, and of
// column 8 j + 2 (lane % 4) + e.
constexpr int elements = plan::tile_n / 2;

using BTile = OperandTile<plan::b_extent, plan::b_mn_major, plan::cluster>;
using Share = ClusterShare<plan::tile_m, plan::tile_n, plan::cluster>;

__device__ __forceinline__ void cluster_sync() {
  if constexpr (plan::cluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

}  // namespace tilesmith
