// Which tile of which product a block computes.
#pragma once

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

}  // namespace tilesmith
