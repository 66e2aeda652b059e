// What the parts of the sm90 kernel share: its types, as the plan has them, its parameters and its shared memory.
#pragma once

#include "batch.cuh"
#include "census.cuh"
#include "epilogue.cuh"
#include "kernels/finish.cuh"
#include "kernels/sm90/skip.cuh"
#include "kernels/sm90/tile_finish.cuh"
#include "mma.cuh"
#include "pipeline.cuh"
#include "ptx/tma.cuh"
#include "raw_mma.cuh"
#include "raw_tile.cuh"
#include "scale.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

using plan::Output;

constexpr int consumers = plan::tile_m / wgmma_m;
constexpr int rank = 2 + plan::batch_rank;
constexpr int elements = plan::tile_n / 2;                              // of a tile that a consumer's thread holds
constexpr bool several = plan::batch_rank > 0 || plan::out_is_partial;  // matrices or splits
constexpr int chunks = plan::tile_n / plan::chunk;
constexpr Scale scale = static_cast<Scale>(plan::scale);
// Sums of planes are promoted: see mma.cuh.
constexpr bool promotes = plan::planes > 1;

// Of two launches, one for ordinary values and one for all others, the census decides which one multiplies. The first
// one reads it, and leaves the verdict to the second.
enum class Runs { always, if_planes_suffice, if_they_do_not };
constexpr Runs runs = static_cast<Runs>(plan::runs);
static_assert(!(promotes && plan::store_waits), "sums of planes wait in their own way");
static_assert(consumers * wgmma_m == plan::tile_m);
static_assert((consumers + 1) * warpgroup_threads == plan::threads);

using ATile = OperandTile<plan::tile_m, plan::a_mn_major, 1>;
using BTile = OperandTile<plan::b_extent, plan::b_mn_major, plan::cluster>;
using RawATile = RawTile<plan::tile_m, plan::a_mn_major>;
using Ring = Pipeline<plan::stages, consumers, plan::cluster, plan::a_is_raw ? 4 : 1>;
using Share = ClusterShare<plan::tile_m, plan::tile_n, plan::cluster>;
using Tiles = Walk<Share, several, plan::b_stays>;
using Products = Accumulation<ATile, BTile, Ring, elements, plan::b_stays>;
using PromotedProducts = PlaneProducts<ATile, BTile, Ring, elements, plan::a_planes, plan::b_planes, plan::b_stays,
                                       plan::with_least_product>;
template <typename Rows>
using ProductsOfRows = RawProducts<RawATile, BTile, Ring, Rows, elements, plan::planes, plan::with_least_product,
                                   elements <= 48   ? 4
                                   : consumers == 1 ? 3
                                                    : 2>;
using ConsumerTurns = Turns<consumers, 1 + consumers>;
using Results = Fragment<Output, elements>;
using ResultStorer = Storer<Output, plan::chunk, plan::out_along_m, plan::out_by_warp,
                            static_cast<Store>(plan::out_store), plan::store_buffers, 2 + plan::out_batch_rank>;

struct alignas(64) Product {
  ptx::TensorMap a, b, out;
  OutputLines<Output> out_lines;  // for stores that the copy engine cannot do
  long long out_batch_stride[most_batch_dimensions];
  Schedule schedule;
  BatchIndex batch_size;
  BatchIndex a_moves, b_moves;  // 0 where the batch shares the operand, 1 elsewhere
  int m, depth;
  int plane_depth;  // of the planes, which lie one behind the other along K
  RowScales a_scales, b_scales;
  Census *a_censuses, *b_censuses;
  Verdict* verdict;
  int a_census_count, b_census_count;
  // What the product finds out of rows for every split, if A is raw: a_censuses then are its own.
  int* split_exponents;
  int split_pitch;
  StripExtents a_extents, b_extents;  // if zeros are skipped
};
using OwnFinish = Finish<Output, most_batch_dimensions>;
struct Parameters : Product, OwnFinish::Arguments {};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

// What a tile's results need to know, of its rows and columns.
struct TileFacts {
  TileScales<plan::tile_n, warpgroup_threads> scales;
  TileBias<plan::tile_n, warpgroup_threads> bias;
};

// Nothing at all if results are not staged, or there are no scales, or no bias.
template <int bytes>
struct StagedResults {
  unsigned char out[consumers][bytes];

  __device__ __forceinline__ unsigned char* staged(int consumer) { return out[consumer]; }
};
template <>
struct StagedResults<0> {
  __device__ __forceinline__ unsigned char* staged(int) { return nullptr; }
};
template <bool any>
struct ColumnScales {
  int scales[consumers][plan::tile_n];

  __device__ __forceinline__ int* column_scales(int consumer) { return scales[consumer]; }
};
template <>
struct ColumnScales<false> {
  __device__ __forceinline__ int* column_scales(int) { return nullptr; }
};

template <bool any>
struct ColumnBias {
  float bias[consumers][plan::tile_n];

  __device__ __forceinline__ float* column_bias(int consumer) { return bias[consumer]; }
};
template <>
struct ColumnBias<false> {
  __device__ __forceinline__ float* column_bias(int) { return nullptr; }
};

// A stage has one plane of each operand; if A is raw, all of A and all planes of B.
struct Operands {
  unsigned char a[plan::stages][plan::a_is_raw ? RawATile::bytes : ATile::bytes];
  unsigned char b[plan::b_stays ? plan::planes : plan::stages][(plan::a_is_raw ? plan::planes : 1) * BTile::bytes];
};
struct Barriers {
  Ring ring;
};
struct Shared
    : Operands,
      StagedResults<ResultStorer::shared_bytes>,
      Barriers,
      ColumnScales<scale != Scale::none>,
      ColumnBias<bias_of == BiasOf::columns>,
      TileExtents<plan::skips_zeros, plan::extents_m, plan::extents_n, plan::a_strip_rows, plan::b_strip_rows> {};
static_assert(sizeof(Shared) == plan::shared_bytes);

}  // namespace tilesmith
