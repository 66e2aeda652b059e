// Undoing the powers of two by which the rows of A and the columns of B were scaled.
#pragma once

#include "batch.cuh"
#include "kernels/fp32_split/scales.cuh"
#include "kernels/hopper/common.cuh"
#include "vector.cuh"

namespace tilesmith {

// The scales of a consumer's part of a tile. Those of the columns are in shared memory; a
// thread has no registers for all of them.
template <int tile_n, int threads>
struct TileScales {
  static constexpr int own_columns = (tile_n + threads - 1) / threads;

  int rows[2];  // of the rows that the thread has
  int columns[own_columns];

  __device__ __forceinline__ TileScales() {}
  // Starts to read them. `rows` is the thread's first row's, `columns` the tile's first column's; none if those of the
  // columns are there already.
  __device__ __forceinline__ TileScales(const int* row_scales, const int* column_scales, int thread)
      : rows{row_scales[0], row_scales[8]} {
    if (column_scales == nullptr)
      return;
#pragma unroll
    for (int i = 0; i < own_columns; ++i) columns[i] = column_scales[min(thread + i * threads, tile_n - 1)];
  }

  __device__ __forceinline__ void put_columns(int* shared, int thread) const {
#pragma unroll
    for (int i = 0; i < own_columns; ++i)
      if (thread + i * threads < tile_n)
        shared[thread + i * threads] = columns[i];
  }
};

// Undoes the scales of `columns` columns, from `first` on, of a thread's sums: of two rows, and of all columns of the
// tile, of which it has two in eight from `column_scales` on.
template <Scale scale, int first, int columns, int elements>
__device__ __forceinline__ void unscale(float (&sum)[elements], const int (&row_scales)[2], const int* column_scales) {
#pragma unroll
  for (int j = first / 8; j < (first + columns) / 8; ++j) {
    const auto column = *reinterpret_cast<const Vector<int, 2>*>(column_scales + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[4 * j + i] = unscaled<scale>(sum[4 * j + i], row_scales[i / 2], column.element[i % 2]);
  }
}

// In shared memory: what undoes the scales of a consumer's columns.
struct ColumnScales {
  int scales[consumers][plan::tile_n];

  __device__ __forceinline__ int* column_scales(int consumer) { return scales[consumer]; }
};

// Undoes the scales of a consumer's results: see deliver_scaled.cuh.
class Scales {
  int* const columns_;
  int rows_[2];

 public:
  using OfTile = TileScales<plan::tile_n, warpgroup_threads>;

  template <typename Shared>
  __device__ __forceinline__ Scales(Shared& shared, int consumer) : columns_(shared.column_scales(consumer)) {}

  static __device__ __forceinline__ const int* of_rows(const Parameters& p, const BatchIndex& batch) {
    return scales_of(p.a_scales, batch);
  }
  static __device__ __forceinline__ const int* of_columns(const Parameters& p, const BatchIndex& batch) {
    return scales_of(p.b_scales, batch);
  }

  __device__ __forceinline__ void take_rows(const OfTile& tile) {
    rows_[0] = tile.rows[0];
    rows_[1] = tile.rows[1];
  }
  __device__ __forceinline__ void put_columns(const OfTile& tile, int thread) const {
    tile.put_columns(columns_, thread);
  }

  template <int first, int columns>
  __device__ __forceinline__ void undo(float (&sum)[elements], int thread) const {
    unscale<plan::scale, first, columns>(sum, rows_, columns_ + thread % 4 * 2);
  }
};

}  // namespace tilesmith
