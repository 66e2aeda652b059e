// Which part of the output a block computes, and when.
#pragma once

namespace tilesmith {

struct TileCoordinate {
  int m;
  int n;
};

// Of counts. A division takes a hundred clocks: `skips` leaves it out where the quotient is zero, by a branch, which
// costs those who have something else to do meanwhile more than it saves.
template <bool skips>
__device__ __forceinline__ int quotient(int dividend, int divisor) {
  if (skips && dividend < divisor)
    return 0;
  return static_cast<unsigned>(dividend) / static_cast<unsigned>(divisor);
}

// Blocks that run at the same time should share rows of A and columns of B in L2. So tiles
// are numbered down groups of tile rows, column by column:
//
//      0  4  8 ..        raster_group = 4
//      1  5  9 ..
//      2  6 10 ..
//      3  7 11 ..
//     (next group)
template <bool skips = false>
__device__ __forceinline__ TileCoordinate grouped_tile(int tile, int tiles_m, int tiles_n, int raster_group) {
  const int tiles_per_group = raster_group * tiles_n;
  const int which = quotient<skips>(tile, tiles_per_group);
  const int within = tile - which * tiles_per_group;
  const int rows = min(raster_group, tiles_m - which * raster_group);
  const int n = quotient<skips>(within, rows);
  return {which * raster_group + within - n * rows, n};
}

// One tile of a persistent grid's work: of a matrix, and of a part of K.
struct Work {
  TileCoordinate tile;
  int k_part;
  int batch;
  int first_k;  // in tiles along K
  int k_steps;
};

// The tile of a schedule with this index. `several`: there may be more than one matrix or part of K.
template <bool several, bool skips, typename Schedule>
__device__ __forceinline__ Work work_at(const Schedule& s, int index) {
  const int tiles = s.tiles_m * s.tiles_n;
  const int matrix = several ? quotient<false>(index, tiles) : 0;
  const int batch = several ? quotient<false>(matrix, s.split_k) : 0;
  const int k_part = matrix - batch * s.split_k;
  return {grouped_tile<skips>(index - matrix * tiles, s.tiles_m, s.tiles_n, s.raster_group), k_part, batch,
          k_part * s.k_steps + min(k_part, s.longer_parts), s.k_steps + (k_part < s.longer_parts)};
}

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

// A block's tiles, one after the other. Blocks that keep to their columns: column_walk.cuh.
template <typename Schedule, typename Share, bool several>
class Walk {
  const Schedule& schedule_;
  const int step_;
  int index_;

 public:
  __device__ __forceinline__ Walk(const Schedule& schedule, const Share& share)
      : schedule_(schedule), step_(share.step()), index_(share.first()) {}

  __device__ __forceinline__ bool more() const {
    return index_ < schedule_.tiles_m * schedule_.tiles_n * schedule_.split_k * schedule_.batches;
  }
  __device__ __forceinline__ Work work() const { return work_at<several, false>(schedule_, index_); }
  // The same for the producer: the first load of a block waits for it, and small products have one group of tiles.
  __device__ __forceinline__ Work urgent_work() const { return work_at<several, true>(schedule_, index_); }
  __device__ __forceinline__ void advance() { index_ += step_; }
};

}  // namespace tilesmith
