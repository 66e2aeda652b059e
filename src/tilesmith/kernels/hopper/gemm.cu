// C = A B on Hopper's tensor cores, for 16-bit operands in any layout that TMA can read.
//
// A persistent grid; a block computes tiles of C one after the other. Its first warpgroup is the producer: one thread
// of it has TMA fill a ring of stages with tiles of A and B. The other warpgroups are consumers: each multiplies its
// 64 rows of the tile, and stores them, as a rule while it multiplies the next tile.
//
// Blocks of a cluster compute tiles one below the other, and load the tile of B that they share once for all.
//
// float32 is multiplied as TF32 (plan::tf32). In bytes, that is a product of 16-bit operands with twice the K, and is
// called so everywhere but where TMA counts elements.
//
// The translation unit defines the constants in namespace plan, and ptx::wgmma, before it includes this file, and then
// the parts that the plan has picked (assembly.py). Each defines some of these names:
//
//   Results                    what a thread holds of a tile     narrow_results, wide_results
//   Storer                     how they get to the output        store_boxes, store_vectors, store_lines
//   Delivery, SharedColumns    what is done to sums before       deliver; with an epilogue deliver_biased and others
//   Tiles, b_stages, b_stage   which tiles, and where B stays    streamed_b, stationary_b
//   ATile, Ring, Products      how a step is multiplied          mma, turned_mma
//   Steps                      which steps are one sum           whole_sums, short_sums, single_steps
//   Outgoing                   when results are stored           store_at_once, store_meanwhile

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/consume.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

struct Operands {
  unsigned char a[plan::stages][ATile::bytes];
  unsigned char b[b_stages][BTile::bytes];
};
struct Barriers {
  Ring ring;

  // All results count. Where some may not: pending_check.cuh.
  __device__ __forceinline__ bool passes(const Parameters&) const { return true; }
};
struct Shared : Operands, StagedResults, Barriers, SharedColumns {};
static_assert(sizeof(Shared) == plan::shared_bytes);

// Has TMA load a tile of A, and of B unless that stays, for every step along K.
__device__ __forceinline__ void load(const Parameters& p, Shared& shared, Share share, const Work& work, bool load_b,
                                     bool is_elected, Ring::Position& at, Ring::Position& last) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size);
  const BatchIndex a_batch = batch * p.a_moves, b_batch = batch * p.b_moves;
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k) {
    const int first_k = k * (plan::tf32 ? tile_k / 2 : tile_k);
    shared.ring.acquire(at, ATile::bytes + (load_b ? BTile::bytes : 0), is_elected);
    if (is_elected) {
      ptx::Barrier& full = shared.ring.full[at.stage];
      ATile::load<dims>(shared.a[at.stage], p.a, first_m, first_k, a_batch, full, 0, 1);
      if (load_b)
        BTile::load<dims>(shared.b[b_stage(at.stage)], p.b, first_n, first_k, b_batch, full, share.place,
                          whole_cluster);
    }
    if constexpr (plan::stationary_b)
      last = at;
    at.advance();
  }
}

__device__ __forceinline__ void produce(const Parameters& p, Shared& shared, Share share) {
  Ring::Position at, last;
  int columns = -1;  // whose tile of B stays
  const bool is_elected = ptx::elect_one();
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = tiles.urgent_work();
    const bool load_b = !plan::stationary_b || work.tile.n != columns;
    if (plan::stationary_b && load_b && columns >= 0)
      shared.ring.wait_empty(last);  // then nobody needs the old one
    columns = work.tile.n;
    load(p, shared, share, work, load_b, is_elected, at, last);
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, 1) gemm(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  const Share share;

  if (ptx::elect_one()) {
    if (warp == 0) {
      ptx::prefetch_tensor_map(p.a);
      ptx::prefetch_tensor_map(p.b);
    }
    shared.ring.init<plan::threads / 32>(warp);
  }
  cluster_sync();
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  // In this order ptxas puts the producer first, whose first load is to start while the rest of the code arrives.
  if (warp >= 4) {
    ptx::registers_increase<plan::consumer_registers>();
    consume(p, shared, share, warp / 4 - 1);
  } else {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0)
      produce(p, shared, share);
    __syncwarp();
  }
  // A neighbour may still write to this block's shared memory, or arrive at its barriers.
  if constexpr (plan::cluster > 1)
    cluster_sync();
}

}  // namespace tilesmith
