// C = A B on Hopper's tensor cores, for 16-bit operands in any layout that the copy engine can read, and for sums of
// planes of 16-bit operands, scaled or not: see split.cu.
//
// A persistent grid; a block computes tiles of C one after the other. Its first warpgroup is the
// producer: one thread of it has the copy engine fill a ring of stages with tiles of A and B.
// The other warpgroups are consumers: each multiplies its 64 rows of the tile, and stores them
// while it multiplies the next tile.
//
// Blocks of a cluster compute tiles one below the other, and load the tile of B that they share once for all.
//
// The translation unit defines the constants in namespace plan, and ptx::wgmma, before it
// includes this file.

#include "batch.cuh"
#include "census.cuh"
#include "element.cuh"
#include "epilogue.cuh"
#include "mma.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
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
using Ring = Pipeline<plan::stages, consumers, plan::cluster>;
using Share = ClusterShare<plan::tile_m, plan::tile_n, plan::cluster>;
using Products = Accumulation<ATile, BTile, Ring, elements, plan::b_stays>;
using PromotedProducts =
    PlaneProducts<ATile, BTile, Ring, elements, plan::planes, plan::b_stays, plan::with_least_product>;
using ConsumerTurns = Turns<consumers, 1 + consumers>;
using Results = Fragment<Output, elements>;
using ResultStorer = Storer<Output, plan::chunk, plan::out_along_m, plan::out_by_warp,
                            static_cast<Store>(plan::out_store), plan::store_buffers, 2 + plan::out_batch_rank>;

struct alignas(64) Parameters {
  ptx::TensorMap a, b, out;
  OutputLines<Output> out_lines;  // for stores that the copy engine cannot do
  long long out_batch_stride[most_batch_dimensions];
  Schedule schedule;
  BatchIndex batch_size;
  BatchIndex a_moves, b_moves;  // 0 where the batch shares the operand, 1 elsewhere
  int depth;
  int plane_depth;  // of the planes, which lie one behind the other along K
  RowScales a_scales, b_scales;
  const Census* censuses;  // of A, then of B
  Verdict* verdict;
  int censuses_each;
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

using Scales = TileScales<plan::tile_n, warpgroup_threads>;

// Nothing at all if there are no scales.
template <bool any>
struct ColumnScales {
  int column_scales[consumers][plan::tile_n];
};
template <>
struct ColumnScales<false> {
  static constexpr int* column_scales[consumers] = {};
};

struct Stages {
  unsigned char a[plan::stages][ATile::bytes];
  unsigned char b[plan::b_stays ? plan::planes : plan::stages][BTile::bytes];
  unsigned char out[consumers][ResultStorer::shared_bytes];
  Ring ring;
};
struct Shared : Stages, ColumnScales<scale != Scale::none> {};
static_assert(sizeof(Shared) == plan::shared_bytes);

__device__ __forceinline__ Schedule::Work work_at(const Parameters& p, int index) {
  return p.schedule.at<several, plan::b_stays>(index);
}

// Loads for every step of a tile along K the planes of A, the last one first, each together with one of B.
template <int planes>
__device__ __forceinline__ void load_planes(const Parameters& p, Shared& shared, Share share,
                                            const Schedule::Work& work, int first_plane, bool load_b,
                                            Ring::Position& at, Ring::Position& last) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  const BatchIndex a_batch = batch * p.a_moves, b_batch = batch * p.b_moves;
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k)
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
      const int a_k = (first_plane + planes - 1 - plane) * p.plane_depth + k * tile_k;
      const int b_k = (first_plane + plane) * p.plane_depth + k * tile_k;
      shared.ring.acquire(at, ATile::bytes + (load_b ? BTile::bytes : 0));
      ptx::Barrier& full = shared.ring.full[at.stage];
      ATile::load<rank>(shared.a[at.stage], p.a, first_m, a_k, a_batch, full, 0, 1);
      if (load_b)
        BTile::load<rank>(shared.b[plan::b_stays ? plane : at.stage], p.b, first_n, b_k, b_batch, full, share.place,
                          whole_cluster);
      last = at;
      at.advance();
    }
}

__device__ __forceinline__ void produce(const Parameters& p, Shared& shared, Share share, bool special) {
  Ring::Position at, last;
  int columns = -1;  // whose tile of B stays
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = work_at(p, i);
    const bool load_b = !plan::b_stays || work.tile.n != columns;
    if (plan::b_stays && load_b && columns >= 0)
      shared.ring.wait_empty(last);  // then nobody needs the old one
    columns = work.tile.n;
    if (special)
      load_planes<1>(p, shared, share, work, plan::planes, load_b, at, last);
    load_planes<plan::planes>(p, shared, share, work, 0, load_b, at, last);
  }
}

__device__ __forceinline__ Destination<Output> destination(const Parameters& p, const Schedule::Work& work, Share share,
                                                           int consumer) {
  Destination<Output> to = {BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size), p.out_lines.first,
                            share.first_m(work.tile) + consumer * wgmma_m, share.first_n(work.tile)};
#pragma unroll
  for (int d = 0; d < plan::batch_rank; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[d];
  if constexpr (plan::out_is_partial)
    to.batch = {{work.split * p.schedule.batches + work.batch}};
  return to;
}

__device__ __forceinline__ Scales tile_scales(const Parameters& p, const Schedule::Work& work, Share share,
                                              int consumer) {
  if constexpr (scale == Scale::none)
    return {};
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  const int thread = threadIdx.x % warpgroup_threads;
  const int row = share.first_m(work.tile) + consumer * wgmma_m + thread / 32 * 16 + thread % 32 / 4;
  return {p.a_scales.of(batch) + row, p.b_scales.of(batch) + share.first_n(work.tile), thread};
}

// Brings results to the output. Their scales are undone on the way.
template <typename Results>
class Departure {
  const ResultStorer storer_;
  int* const column_scales_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  int row_scales_[2];
  Destination<Output> to_;

  template <int from = 0>
  __device__ __forceinline__ void store_chunks(Results& results) const {
    if constexpr (from < chunks) {
      if constexpr (scale != Scale::none)
        unscale<scale, from * plan::chunk, plan::chunk>(results.values, row_scales_, column_scales_ + thread_ % 4 * 2);
      storer_.template stage<from>(results);
      for (int part = 0; part < ResultStorer::parts; ++part) storer_.send(from, part, to_);
      store_chunks<from + 1>(results);
    }
  }

 public:
  __device__ __forceinline__ Departure(const Parameters& p, Shared& shared, int consumer)
      : storer_(p.out, p.out_lines, shared.out[consumer], 1 + consumer),
        column_scales_(shared.column_scales[consumer]),
        barrier_(1 + consumer) {}

  // Where the next results go.
  __device__ __forceinline__ void prepare(const Destination<Output>& to, const Scales& scales) {
    to_ = to;
    if constexpr (scale == Scale::none)
      return;
    row_scales_[0] = scales.rows[0];
    row_scales_[1] = scales.rows[1];
    ptx::named_barrier_sync(barrier_, warpgroup_threads);  // all have used the last ones
    scales.put_columns(column_scales_, thread_);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }

  __device__ __forceinline__ void store(Results& results) const { store_chunks(results); }

  // The same in steps, with time for other work in between.
  template <int chunk>
  __device__ __forceinline__ void stage(const Results& results) const {
    storer_.template stage<chunk>(results);
  }
  __device__ __forceinline__ void send(int chunk, int part) const { storer_.send(chunk, part, to_); }

  __device__ __forceinline__ void finish() const { storer_.finish(); }
};

// The steps of a tile along K after the first, and after each of these a part of the results that wait.
template <int chunk = 0, typename Results>
__device__ __forceinline__ void multiply_and_store(Products& products, int k, int k_steps,
                                                   const Departure<Results>& departure, const Results& waiting,
                                                   bool is_waiting) {
  if constexpr (chunk < chunks) {
    if (is_waiting)
      departure.template stage<chunk>(waiting);
    for (int part = 0; part < ResultStorer::parts; ++part) {
      if (is_waiting)
        departure.send(chunk, part);
      if (k++ < k_steps)
        products.next();
    }
    multiply_and_store<chunk + 1>(products, k, k_steps, departure, waiting, is_waiting);
  } else {
    for (; k < k_steps; ++k) products.next();
  }
}

// A consumer's tiles, if its operands are single planes.
template <typename Results>
__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = work_at(p, i);
    const Scales scales = tile_scales(p, work, share, consumer);
    products.first();
    if constexpr (plan::store_waits) {
      multiply_and_store(products, 1, work.k_steps, departure, results, is_waiting);
    } else {
      for (int k = 1; k < work.k_steps; ++k) products.next();
    }
    products.finish();
    results.take(products.sum);
    departure.prepare(destination(p, work, share, consumer), scales);
    if constexpr (plan::store_waits)
      is_waiting = true;
    else
      departure.store(results);
  }
  if (is_waiting)
    departure.store(results);
  departure.finish();
}

// The same for sums of planes. What one step along K adds up to is promoted to a sum that rounds. That sum waits until
// the first step of the next tile is under way, and is stored meanwhile.
template <typename Results>
__device__ __forceinline__ void consume_planes(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = work_at(p, i);
    const Scales scales = tile_scales(p, work, share, consumer);
    products.start();
    if (is_waiting)
      departure.store(results);
    products.finish();
    results.take(products.sum);
    for (int k = 1; k < work.k_steps; ++k) {
      products.start();
      products.finish();
      results.add(products.sum);
    }
    departure.prepare(destination(p, work, share, consumer), scales);
    is_waiting = true;
  }
  if (is_waiting)
    departure.store(results);
  departure.finish();
}

// The same where K is one step and the tile is wide: its sum needs no other, and there is none to wait in.
template <typename Results>
__device__ __forceinline__ void consume_single_steps(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  const ConsumerTurns turns(consumer);
  Results results;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = work_at(p, i);
    turns.wait();
    products.start();
    turns.pass();
    departure.prepare(destination(p, work, share, consumer), tile_scales(p, work, share, consumer));
    products.finish();
    results.take(products.sum);
    departure.store(results);
  }
  departure.finish();
}

// The same for any values: of infinities and NaNs there are planes of their own, and products that say no more than
// where in the output they get.
template <typename Results>
__device__ __forceinline__ void consume_wide_planes(const Parameters& p, Shared& shared, Share share, int consumer,
                                                    bool special) {
  Departure<Results> departure(p, shared, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = work_at(p, i);
    results.clear();
    if (special) {
      for (int k = 0; k < work.k_steps; ++k) products.add_single(k > 0);
      results.take_special(products.sum);
    }
    for (int k = 0; k < work.k_steps; ++k) {
      of_step.clear();
      products.step_in_short_sums([&](const float (&sum)[elements]) { of_step.add(sum); });
      results.add(of_step.values);
    }
    departure.prepare(destination(p, work, share, consumer), tile_scales(p, work, share, consumer));
    departure.store(results);
  }
  departure.finish();
}

__device__ __forceinline__ void cluster_sync() {
  if constexpr (plan::cluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, 1) sm90(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  const Share share;

  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensor_map(p.a);
    ptx::prefetch_tensor_map(p.b);
    shared.ring.init();
  }
  cluster_sync();
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  bool special = false;
  if constexpr (runs == Runs::if_planes_suffice) {
    const Census a = total<plan::a_slabs>(p.censuses, p.censuses_each);
    const Census b = total<plan::b_slabs>(p.censuses + p.censuses_each, p.censuses_each);
    const Verdict found = verdict(a, b, p.depth);
    if (blockIdx.x == 0 && threadIdx.x == 0)
      *p.verdict = found;
    if (found != Verdict::planes_suffice)
      return;
  } else if constexpr (runs == Runs::if_they_do_not) {
    const Verdict found = *p.verdict;
    if (found == Verdict::planes_suffice)
      return;
    special = found == Verdict::special;
  }

  if (warp < 4) {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0 && ptx::elect_one())
      produce(p, shared, share, special);
    __syncwarp();
  } else {
    ptx::registers_increase<plan::consumer_registers>();
    if constexpr (runs == Runs::if_they_do_not)
      consume_wide_planes<Results>(p, shared, share, warp / 4 - 1, special);
    else if constexpr (promotes && plan::tile_n > plan::widest_promoted)
      consume_single_steps<Results>(p, shared, share, warp / 4 - 1);
    else if constexpr (promotes)
      consume_planes<Results>(p, shared, share, warp / 4 - 1);
    else
      consume<Results>(p, shared, share, warp / 4 - 1);
  }
  // A neighbour may still write to this block's shared memory, or arrive at its barriers.
  if constexpr (plan::cluster > 1)
    cluster_sync();
}

}  // namespace tilesmith
