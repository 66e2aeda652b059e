// What the kernels of this family share: types as the plan has them, and what they are made of in shared memory.
#pragma once

#include "batch.cuh"
#include "kernels/epilogue.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "scheduler.cuh"
#include "tile.cuh"
#include "tile_store.cuh"

namespace tilesmith {

using plan::Output;
using plan::Parameters;

constexpr int consumers = plan::tile_m / wgmma_m;
constexpr int dims = 2 + plan::batch_dims;
constexpr bool several = plan::out_batch_dims > 0;  // matrices or parts of K
constexpr int elements = plan::tile_n / 2;          // of a tile that a consumer's thread holds
constexpr int chunks = plan::tile_n / plan::chunk;
static_assert(consumers * wgmma_m == plan::tile_m);
static_assert((consumers + 1) * warpgroup_threads == plan::threads);
static_assert(!plan::short_sums || sizeof(Output) == sizeof(float), "totals of short sums are results");

using ATile = OperandTile<plan::tile_m, plan::a_mn_major, 1>;
using BTile = OperandTile<plan::b_extent, plan::b_mn_major, plan::cluster>;
using Share = ClusterShare<plan::tile_m, plan::tile_n, plan::cluster>;
using Tiles = Walk<plan::Schedule, Share, several, plan::stationary_b>;
using Results = Fragment<Output, elements>;
using ResultStorer = Storer<Output, plan::OutputLines, plan::chunk, plan::out_along_m, plan::out_by_warp,
                            plan::out_store, plan::store_buffers, 2 + plan::out_batch_dims>;
constexpr bool has_column_bias = has_epilogue && !plan::out_along_m;
using OwnEpilogue = Epilogue<Output, max_batch_dims>;

// Nothing at all if results are not staged, or there is no bias of columns.
template <int bytes>
struct StagedResults {
  unsigned char out[consumers][bytes];

  __device__ __forceinline__ unsigned char* staged(int consumer) { return out[consumer]; }
};
template <>
struct StagedResults<0> {
  __device__ __forceinline__ unsigned char* staged(int) { return nullptr; }
};
template <bool any>
struct ColumnBias {
  float bias[consumers][plan::tile_n];

  __device__ __forceinline__ float* column_bias(int consumer) { return bias[consumer]; }
};
template <>
struct ColumnBias<false> {
  __device__ __forceinline__ float* column_bias(int) { return nullptr; }
};

// All results count. Others: pending_check.cuh.
struct Unchecked {
  __device__ __forceinline__ bool passes(const Parameters&) const { return true; }
};

__device__ __forceinline__ void cluster_sync() {
  if constexpr (plan::cluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

}  // namespace tilesmith
