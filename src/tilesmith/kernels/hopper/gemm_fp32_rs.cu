// C = A B on Hopper's tensor cores, for a float32 A that consumers split on its way to wgmma, which takes it from
// registers (RS), and a B that is a sum of 16-bit terms: see fp32_split/split.cu. The block's work is that of gemm.cu.
// The first of two launches counts what its rows of A are like, besides multiplying, and its last block finds the range
// check; the second multiplies if there are values that the first one could not hold.
//
// The translation unit defines the constants in namespace plan, and ptx::wgmma, before it includes this file, and then
// the parts that the plan has picked: see gemm.cu for the names that they define, here Results, Storer, Delivery and
// Tiles.

#include "kernels/fp32_split/range_check.cuh"
#include "kernels/hopper/common.cuh"
#include "kernels/hopper/consume_rs.cuh"
#include "kernels/hopper/fp32_tile.cuh"
#include "kernels/hopper/rs_mma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

static_assert(!plan::store_waits && !plan::only_stores && !plan::short_sums, "steps are added up one by one");

using Fp32ATile = Fp32Tile<plan::tile_m, plan::a_mn_major>;
using Ring = Pipeline<plan::stages, consumers, plan::cluster, 4>;
template <typename Rows>
using ProductsOfRows = RsProducts<Fp32ATile, BTile, Ring, Rows, elements, plan::terms, plan::with_least_product,
                                  elements <= 48   ? 4
                                  : consumers == 1 ? 3
                                                   : 2>;

// A stage has all of A, and all terms of B.
struct Operands {
  unsigned char a[plan::stages][Fp32ATile::bytes];
  unsigned char b[plan::stages][plan::terms * BTile::bytes];
};
struct Barriers {
  Ring ring;
};
struct Shared : Operands, StagedResults, Barriers, SharedColumns {};
static_assert(sizeof(Shared) == plan::shared_bytes);

// Loads for every step of a tile along K a stage, which has A and the terms of B that it is multiplied with.
template <int terms>
__device__ __forceinline__ void load_rs(const Parameters& p, Shared& shared, Share share, const Work& work,
                                        int first_term, bool is_elected, Ring::Position& at) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size);
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k) {
    shared.ring.acquire(at, Fp32ATile::bytes + terms * BTile::bytes, is_elected);
    if (is_elected) {
      ptx::Barrier& full = shared.ring.full[at.stage];
      Fp32ATile::load<dims>(shared.a[at.stage], p.a, first_m, k * tile_k, batch * p.a_moves, full);
#pragma unroll
      for (int term = 0; term < terms; ++term)
        BTile::load<dims>(shared.b[at.stage] + term * BTile::bytes, p.b, first_n,
                          (first_term + term) * p.term_depth + k * tile_k, batch * p.b_moves, full, share.place,
                          whole_cluster);
    }
    at.advance();
  }
}

__device__ __forceinline__ void produce_rs(const Parameters& p, Shared& shared, Share share, bool special) {
  Ring::Position at;
  const bool is_elected = ptx::elect_one();
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = tiles.urgent_work();
    if (special)
      load_rs<1>(p, shared, share, work, plan::terms, is_elected, at);
    load_rs<plan::terms>(p, shared, share, work, 0, is_elected, at);
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, 1) gemm_fp32_rs(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  const Share share;

  bool special = false;
  if constexpr (plan::runs == Runs::if_out_of_range) {
    ptx::grid_dependency_wait();
    const RangeCheck found = *p.range_check;
    if (found == RangeCheck::in_range)
      return;
    special = found == RangeCheck::special;
  }

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
    const int consumer = warp / 4 - 1;
    if constexpr (plan::runs == Runs::if_out_of_range)
      consume_rs_full_range<ProductsOfRows<FullRangeRows<plan::terms>>>(p, shared, share, consumer, special);
    else
      consume_rs<ProductsOfRows<ScaledRows<plan::terms>>>(p, shared, share, consumer);
  } else {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0)
      produce_rs(p, shared, share, special);
    __syncwarp();
  }
  // A neighbour may still write to this block's shared memory, or arrive at its barriers.
  if constexpr (plan::cluster > 1)
    cluster_sync();
}

}  // namespace tilesmith
