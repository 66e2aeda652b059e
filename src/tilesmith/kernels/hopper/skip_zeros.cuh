// What of K a tile need not multiply: where one operand has nothing but zeros.
#pragma once

#include "kernels/fp32_split/extent.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

// The extent of some rows of an operand, from those of its row blocks. All lanes of a warp get it.
template <int block_rows, int k_chunks>
__device__ __forceinline__ Extent extent_of_rows(const plan::RowBlockExtents& extents, int first_row, int end_row) {
  Extent extent = Extent::none();
  const int end = min((end_row + block_rows - 1) / block_rows, extents.row_blocks) * k_chunks;
  for (int i = first_row / block_rows * k_chunks + threadIdx.x % 32; i < end; i += 32) extent.add(extents.found[i]);
  extent.add_lanes();
  return extent;
}

// In shared memory, if zeros are skipped: the extents of rows and of columns of a cluster's tiles.
template <bool any, int tiles_m, int tiles_n, int a_block_rows, int b_block_rows>
struct TileExtents {
  Extent extents_m[tiles_m], extents_n[tiles_n];

  // All threads of the block together.
  __device__ __forceinline__ void find(const plan::RowBlockExtents& a, const plan::RowBlockExtents& b) {
    constexpr int rows = plan::cluster * plan::tile_m, columns = plan::tile_n;
    for (int i = threadIdx.x / 32; i < tiles_m; i += plan::threads / 32)
      extents_m[i] = extent_of_rows<a_block_rows, plan::a_k_chunks>(a, i * rows, (i + 1) * rows);
    for (int i = threadIdx.x / 32; i < tiles_n; i += plan::threads / 32)
      extents_n[i] = extent_of_rows<b_block_rows, plan::b_k_chunks>(b, i * columns, (i + 1) * columns);
    __syncthreads();
  }

  // The work without the steps that add zeros; one of them if there are no others.
  __device__ __forceinline__ Work without_zeros(Work work) const {
    const Extent rows = extents_m[work.tile.m], columns = extents_n[work.tile.n];
    const int first = max(rows.first, columns.first) / tile_k;
    const int end = (min(rows.end, columns.end) + tile_k - 1) / tile_k;
    work.first_k = first < end ? first : 0;
    work.k_steps = max(end - first, 1);
    return work;
  }
};
template <int tiles_m, int tiles_n, int a_block_rows, int b_block_rows>
struct TileExtents<false, tiles_m, tiles_n, a_block_rows, b_block_rows> {
  __device__ __forceinline__ void find(const plan::RowBlockExtents&, const plan::RowBlockExtents&) {}
  __device__ __forceinline__ const Work& without_zeros(const Work& work) const { return work; }
};

}  // namespace tilesmith
