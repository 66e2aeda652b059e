// What of K a tile need not multiply: where one operand has nothing but zeros.
#pragma once

#include "extent.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

// The extents of strips of an operand's rows, each with its slabs.
struct StripExtents {
  const Extent* found;
  int strips;

  // Of some rows. All lanes of a warp get it.
  template <int strip_rows, int slabs>
  __device__ __forceinline__ Extent of_rows(int first_row, int end_row) const {
    Extent extent = Extent::none();
    const int end = min((end_row + strip_rows - 1) / strip_rows, strips) * slabs;
    for (int i = first_row / strip_rows * slabs + threadIdx.x % 32; i < end; i += 32) extent.add(found[i]);
    extent.add_lanes();
    return extent;
  }
};

// In shared memory, if zeros are skipped: the extents of rows and of columns of a cluster's tiles.
template <bool any, int tiles_m, int tiles_n, int a_strip_rows, int b_strip_rows>
struct TileExtents {
  Extent extents_m[tiles_m], extents_n[tiles_n];

  // All threads of the block together.
  __device__ __forceinline__ void find(const StripExtents& a, const StripExtents& b) {
    constexpr int rows = plan::cluster * plan::tile_m, columns = plan::tile_n;
    for (int i = threadIdx.x / 32; i < tiles_m; i += plan::threads / 32)
      extents_m[i] = a.of_rows<a_strip_rows, plan::a_slabs>(i * rows, (i + 1) * rows);
    for (int i = threadIdx.x / 32; i < tiles_n; i += plan::threads / 32)
      extents_n[i] = b.of_rows<b_strip_rows, plan::b_slabs>(i * columns, (i + 1) * columns);
    __syncthreads();
  }

  // The work without the steps that add zeros; one of them if there are no others.
  __device__ __forceinline__ Schedule::Work without_zeros(Schedule::Work work) const {
    const Extent rows = extents_m[work.tile.m], columns = extents_n[work.tile.n];
    const int first = max(rows.first, columns.first) / tile_k;
    const int end = (min(rows.end, columns.end) + tile_k - 1) / tile_k;
    work.first_k = first < end ? first : 0;
    work.k_steps = max(end - first, 1);
    return work;
  }
};
template <int tiles_m, int tiles_n, int a_strip_rows, int b_strip_rows>
struct TileExtents<false, tiles_m, tiles_n, a_strip_rows, b_strip_rows> {
  __device__ __forceinline__ void find(const StripExtents&, const StripExtents&) {}
  __device__ __forceinline__ const Schedule::Work& without_zeros(const Schedule::Work& work) const { return work; }
};

}  // namespace tilesmith
