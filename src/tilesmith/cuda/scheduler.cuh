// Which part of the output a block computes, and when.
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
__device__ __forceinline__ TileCoordinate banded_tile(int tile, int tiles_m, int tiles_n, int band) {
  const int tiles_per_band = band * tiles_n;
  const int which = tile / tiles_per_band;
  const int within = tile - which * tiles_per_band;
  const int rows = min(band, tiles_m - which * band);
  const int n = within / rows;
  return {which * band + within - n * rows, n};
}

// The work of a persistent grid: every tile of every matrix, K possibly cut into splits. Tiles
// that run together belong to one matrix and one split as long as there are any.
struct Schedule {
  int tiles_m;  // in tiles of a whole cluster
  int tiles_n;
  int splits;
  int batches;
  int k_steps;        // of a split
  int longer_splits;  // the first ones, which have one step more
  int band;
  int panel;  // columns of tiles that are done before the next ones; a divisor of tiles_n

  struct Work {
    TileCoordinate tile;
    int split;
    int batch;
    int first_k;  // in tiles along K
    int k_steps;
  };

  __device__ __forceinline__ int size() const { return tiles_m * tiles_n * splits * batches; }

  // `several`: there is more than one matrix or split. `panels`: there may be more than one panel. Divisions take their
  // time at the start of a small product.
  template <bool several, bool panels>
  __device__ __forceinline__ Work at(int index) const {
    const int tiles = tiles_m * tiles_n;
    const int matrix = several ? index / tiles : 0;
    const int batch = several ? matrix / splits : 0;
    const int split = matrix - batch * splits;
    const int within = index - matrix * tiles;
    const int which = panels ? within / (tiles_m * panel) : 0;
    TileCoordinate tile = banded_tile(within - which * (tiles_m * panel), tiles_m, panels ? panel : tiles_n, band);
    tile.n += which * panel;
    return {tile, split, batch, split * k_steps + min(split, longer_splits), k_steps + (split < longer_splits)};
  }
};

// A block's share of a schedule: every so many tiles of a cluster, and of those the one in its place. The blocks of a
// cluster lie one below the other.
template <int tile_m, int tile_n, int cluster>
struct ClusterShare {
  const int place = blockIdx.x % cluster;

  __device__ __forceinline__ int first() const { return blockIdx.x / cluster; }
  __device__ __forceinline__ int step() const { return gridDim.x / cluster; }

  __device__ __forceinline__ int first_m(TileCoordinate tile) const { return (tile.m * cluster + place) * tile_m; }
  __device__ __forceinline__ int first_n(TileCoordinate tile) const { return tile.n * tile_n; }
};

}  // namespace tilesmith
