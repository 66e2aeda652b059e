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
  int panel;  // columns of tiles that are done before the next ones, where blocks keep to theirs: see Walk

  struct Work {
    TileCoordinate tile;
    int split;
    int batch;
    int first_k;  // in tiles along K
    int k_steps;
  };

  __device__ __forceinline__ int size() const { return tiles_m * tiles_n * splits * batches; }

  // `several`: there is more than one matrix or split. Divisions take their time at the start of a small product.
  template <bool several>
  __device__ __forceinline__ Work at(int index) const {
    const int tiles = tiles_m * tiles_n;
    const int matrix = several ? index / tiles : 0;
    const int batch = several ? matrix / splits : 0;
    const int split = matrix - batch * splits;
    return {banded_tile(index - matrix * tiles, tiles_m, tiles_n, band), split, batch,
            split * k_steps + min(split, longer_splits), k_steps + (split < longer_splits)};
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

// A block's tiles, one after the other. `keeps_columns`: there is one matrix, and its tiles go row by row through one
// panel after the other. The grid has whole rows of a panel, so a block stays in its column of each panel.
template <typename Share, bool several, bool keeps_columns>
class Walk {
  const Schedule& schedule_;
  const int step_;
  int index_;
  int rows_;  // of a step
  TileCoordinate tile_;

 public:
  __device__ __forceinline__ Walk(const Schedule& schedule, const Share& share)
      : schedule_(schedule), step_(share.step()), index_(share.first()) {
    if constexpr (keeps_columns) {
      rows_ = step_ / schedule.panel;
      tile_.m = index_ / schedule.panel;
      tile_.n = index_ - tile_.m * schedule.panel;
    }
  }

  __device__ __forceinline__ bool more() const { return index_ < schedule_.size(); }

  __device__ __forceinline__ Schedule::Work work() const {
    if constexpr (keeps_columns)
      return {tile_, 0, 0, 0, schedule_.k_steps};
    return schedule_.at<several>(index_);
  }

  __device__ __forceinline__ void advance() {
    index_ += step_;
    if constexpr (keeps_columns) {
      tile_.m += rows_;
      for (; tile_.m >= schedule_.tiles_m; tile_.m -= schedule_.tiles_m) tile_.n += schedule_.panel;
    }
  }
};

}  // namespace tilesmith
