// C = A B on Hopper's tensor cores, for 16-bit operands in any layout that the copy engine can read.
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
#include "element.cuh"
#include "epilogue.cuh"
#include "mma.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "scheduler.cuh"
#include "tile.cuh"

namespace tilesmith {

using plan::Output;

constexpr int consumers = plan::tile_m / wgmma_m;
constexpr int rank = 2 + plan::batch_rank;
constexpr int elements = plan::tile_n / 2;                              // of a tile that a consumer's thread holds
constexpr bool several = plan::batch_rank > 0 || plan::out_is_partial;  // matrices or splits
constexpr int chunks = plan::tile_n / plan::chunk;
static_assert(consumers * wgmma_m == plan::tile_m);
static_assert((consumers + 1) * warpgroup_threads == plan::threads);

using ATile = OperandTile<plan::tile_m, plan::a_mn_major, 1>;
using BTile = OperandTile<plan::tile_n, plan::b_mn_major, plan::cluster>;
using Ring = Pipeline<plan::stages, consumers, plan::cluster>;
using Share = ClusterShare<plan::tile_m, plan::tile_n, plan::cluster>;
using Products = Accumulation<ATile, BTile, Ring, elements, plan::b_stays>;
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
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

struct Shared {
  unsigned char a[plan::stages][ATile::bytes];
  unsigned char b[plan::b_stays ? 1 : plan::stages][BTile::bytes];
  unsigned char out[consumers][ResultStorer::shared_bytes];
  Ring ring;
};
static_assert(sizeof(Shared) == plan::shared_bytes);

__device__ __forceinline__ void produce(const Parameters& p, Shared& shared, Share share) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  Ring::Position at;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = p.schedule.at<several>(i);
    const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
    const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
    const BatchIndex a_batch = batch * p.a_moves, b_batch = batch * p.b_moves;
    // Where B stays, all tiles of a block have the same columns, and one step along K.
    const bool load_b = !plan::b_stays || i == share.first();
    for (int k = work.first_k; k < work.first_k + work.k_steps; ++k) {
      shared.ring.acquire(at, ATile::bytes + (load_b ? BTile::bytes : 0));
      ptx::Barrier& full = shared.ring.full[at.stage];
      ATile::load<rank>(shared.a[at.stage], p.a, first_m, k * tile_k, a_batch, full, 0, 1);
      if (load_b)
        BTile::load<rank>(shared.b[plan::b_stays ? 0 : at.stage], p.b, first_n, k * tile_k, b_batch, full, share.place,
                          whole_cluster);
      at.advance();
    }
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

template <int from = 0>
__device__ __forceinline__ void store_chunks(const ResultStorer& storer, const Results& results,
                                             const Destination<Output>& to) {
  if constexpr (from < chunks) {
    storer.stage<from>(results);
    for (int part = 0; part < ResultStorer::parts; ++part) storer.send(from, part, to);
    store_chunks<from + 1>(storer, results, to);
  }
}

// The steps of a tile along K after the first, and after each of these a part of the results that wait.
template <int chunk = 0>
__device__ __forceinline__ void multiply_and_store(Products& products, int k, int k_steps, const ResultStorer& storer,
                                                   const Results& waiting, const Destination<Output>& to,
                                                   bool is_waiting) {
  if constexpr (chunk < chunks) {
    if (is_waiting)
      storer.stage<chunk>(waiting);
    for (int part = 0; part < ResultStorer::parts; ++part) {
      if (is_waiting)
        storer.send(chunk, part, to);
      if (k++ < k_steps)
        products.next();
    }
    multiply_and_store<chunk + 1>(products, k, k_steps, storer, waiting, to, is_waiting);
  } else {
    for (; k < k_steps; ++k) products.next();
  }
}

__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  const ResultStorer storer(p.out, p.out_lines, shared.out[consumer], 1 + consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  Destination<Output> to;
  bool is_waiting = false;
  for (int i = share.first(); i < p.schedule.size(); i += share.step()) {
    const Schedule::Work work = p.schedule.at<several>(i);
    products.first();
    if constexpr (plan::store_waits) {
      multiply_and_store(products, 1, work.k_steps, storer, results, to, is_waiting);
    } else {
      for (int k = 1; k < work.k_steps; ++k) products.next();
    }
    products.finish();
    results.take(products.sum);
    to = destination(p, work, share, consumer);
    if constexpr (plan::store_waits)
      is_waiting = true;
    else
      store_chunks(storer, results, to);
  }
  if (is_waiting)
    store_chunks(storer, results, to);
  storer.finish();
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

  if (warp < 4) {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0 && ptx::elect_one())
      produce(p, shared, share);
    __syncwarp();
  } else {
    ptx::registers_increase<plan::consumer_registers>();
    consume(p, shared, share, warp / 4 - 1);
  }
  // A neighbour may still write to this block's shared memory, or arrive at its barriers.
  if constexpr (plan::cluster > 1)
    cluster_sync();
}

}  // namespace tilesmith
