// Which tile of the output a block computes.
#pragma once

namespace tilesmith {

struct TileCoordinate {
  int m;
  int n;
};

// Blocks that run at the same time should share rows of A and columns of B in L2. So tiles
// are numbered down bands of `band` tile rows, column by column:
//
//      0  4  8 ..        band = 4
//      1  5  9 ..
//      2  6 10 ..
//      3  7 11 ..
//     (next band)
template <int band>
__device__ __forceinline__ TileCoordinate banded_tile(int tile, int tiles_m, int tiles_n) {
  int tiles_per_band = band * tiles_n;
  int first_m = tile / tiles_per_band * band;
  int rows = min(band, tiles_m - first_m);
  int within = tile % tiles_per_band;
  return {first_m + within % rows, within / rows};
}

}  // namespace tilesmith
