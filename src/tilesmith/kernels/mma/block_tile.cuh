// Which tile of which product a block computes, and of which part of K.
#pragma once

#include "batch.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

using plan::Parameters;

struct BlockTile {
  int matrix;  // of the batch
  int first_m, first_n;

  // Found anew by each call: it takes no register in between.
  //
  // Tiles of a row are counted through all matrices of a batch. Where tiles are large, blocks that run at the same time
  // have few rows and few columns in common, which L2 keeps.
  static __device__ __forceinline__ BlockTile own(const Parameters& p) {
    int row = ptx::forgotten(blockIdx.y), column = ptx::forgotten(blockIdx.x), matrix = 0;
    if constexpr (plan::raster_rows > 1) {
      const int band = row / plan::raster_rows * plan::raster_rows;
      const int rows = min(plan::raster_rows, static_cast<int>(gridDim.y) - band);
      const int in_band = (row - band) * static_cast<int>(gridDim.x) + column;
      column = in_band / rows;
      row = band + in_band - column * rows;
    }
    if (column >= p.tiles_n) {
      matrix = column / p.tiles_n;
      column -= matrix * p.tiles_n;
    }
    return {matrix, row * plan::tile_m, column * plan::tile_n};
  }
};

// The matrices that a block multiplies, from its part of K on.
struct PartOfOperands {
  const int first_k, k;
  const plan::Element* a;
  const plan::Element* b;

  __device__ __forceinline__ explicit PartOfOperands(const Parameters& p)
      : first_k(blockIdx.z * p.part_k),
        k(min(p.k - first_k, p.part_k)),
        a(p.a + first_k * p.a_stride_k),
        b(p.b + first_k * p.b_stride_k) {}

  __device__ __forceinline__ void move_to(int matrix, const Parameters& p) {
    if (matrix > 0) {
      const BatchIndex index = BatchIndex::of(matrix, p.batch);
#pragma unroll
      for (int d = 0; d < max_batch_dims; ++d) {
        a += index.at[d] * p.a_batch_strides[d];
        b += index.at[d] * p.b_batch_strides[d];
      }
    }
  }
};

}  // namespace tilesmith
