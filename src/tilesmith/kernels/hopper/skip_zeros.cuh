// What of K a tile need not multiply: where one operand has nothing but zeros.
#pragma once

#include "kernels/fp32_split/extent.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

// The extent of some rows of an operand, from those of its row blocks. All lanes of a warp get it.
__device__ __forceinline__ Extent extent_of_rows(const plan::RowBlockExtents& extents, int first_row, int end_row) {
  const int rows = extents.rows, k_chunks = extents.k_chunks;
  Extent extent = Extent::none();
  const int end = min((end_row + rows - 1) / rows, extents.row_blocks) * k_chunks;
  for (int i = first_row / rows * k_chunks + threadIdx.x % 32; i < end; i += 32) extent.add(extents.found[i]);
  extent.add_lanes();
  return extent;
}

// In shared memory, if zeros are skipped: the extents of rows of a cluster's tiles, and then those of columns.
template <bool any>
struct TileExtents {
  Extent extents[plan::max_extents];

  // All threads of the block together.
  __device__ __forceinline__ void find(const plan::RowBlockExtents& a, const plan::RowBlockExtents& b,
                                       const plan::Schedule& schedule) {
    constexpr int rows = plan::cluster * plan::tile_m, columns = plan::tile_n;
    for (int i = threadIdx.x / 32; i < schedule.tiles_m; i += plan::threads / 32)
      extents[i] = extent_of_rows(a, i * rows, (i + 1) * rows);
    for (int i = threadIdx.x / 32; i < schedule.tiles_n; i += plan::threads / 32)
      extents[schedule.tiles_m + i] = extent_of_rows(b, i * columns, (i + 1) * columns);
    __syncthreads();
  }

  // The work without the steps that add zeros; one of them if there are no others.
  __device__ __forceinline__ Work without_zeros(Work work, const plan::Schedule& schedule) const {
    const Extent rows = extents[work.tile.m], columns = extents[schedule.tiles_m + work.tile.n];
    const int first = max(rows.first, columns.first) / tile_k;
    const int end = (min(rows.end, columns.end) + tile_k - 1) / tile_k;
    work.first_k = first < end ? first : 0;
    work.k_steps = max(end - first, 1);
    return work;
  }
};
template <>
struct TileExtents<false> {
  __device__ __forceinline__ void find(const plan::RowBlockExtents&, const plan::RowBlockExtents&,
                                       const plan::Schedule&) {}
  __device__ __forceinline__ const Work& without_zeros(const Work& work, const plan::Schedule&) const { return work; }
};

}  // namespace tilesmith
