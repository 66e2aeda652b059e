// C = A B on Hopper's tensor cores, for operands that are sums of 16-bit terms, scaled or not: see
// fp32_split/split.cu. The block's work is that of gemm.cu. Of two launches, one for ordinary values and one for all
// others, the range statistics decide which one multiplies: the first one reads them during its first tiles, and leaves
// the range check to the second.
//
// The translation unit defines the constants in namespace plan, and ptx::wgmma, before it includes this file, and then
// the parts that the plan has picked: those of gemm.cu, which says what they define. Sums of several terms need no
// Steps and no Outgoing.

#include "kernels/fp32_split/range_check.cuh"
#include "kernels/hopper/common.cuh"
#include "kernels/hopper/consume.cuh"
#include "kernels/hopper/consume_terms.cuh"
#include "kernels/hopper/pending_check.cuh"
#include "kernels/hopper/skip_zeros.cuh"
#include "kernels/hopper/term_mma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

// Sums of several terms are promoted: see term_mma.cuh.
constexpr bool promotes = plan::terms > 1;
static_assert(!(promotes && plan::store_waits), "sums of terms wait in their own way");

using PromotedProducts = TermProducts<ATile, BTile, Ring, elements, plan::a_terms, plan::b_terms, plan::stationary_b,
                                      plan::with_least_product>;

// A stage has one term of each operand.
struct Operands {
  unsigned char a[plan::stages][ATile::bytes];
  unsigned char b[plan::stationary_b ? plan::terms : plan::stages][BTile::bytes];
};
struct Barriers {
  Ring ring;
};
using Check = PendingCheck<plan::runs == Runs::if_in_range>;
struct Shared : Operands, StagedResults, Barriers, Check, SharedColumns, TileExtents<plan::skips_zeros> {};
static_assert(sizeof(Shared) == plan::shared_bytes);

// Loads for every step of a tile along K the terms of A, the last one first, each together with one of B; or, where
// one of them is a single term, that together with the last one of the other.
template <int terms>
__device__ __forceinline__ void load_terms(const Parameters& p, Shared& shared, Share share, const Work& work,
                                           int first_term, bool load_b, bool is_elected, Ring::Position& at,
                                           Ring::Position& last) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size);
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k)
#pragma unroll
    for (int term = 0; term < terms; ++term) {
      const bool with_a = plan::a_terms > 1 || term == 0;
      const bool with_b = load_b && (plan::b_terms > 1 || term == 0);
      const int from_end = terms - 1 - term;
      const int a_k = (first_term + (plan::a_terms > 1 ? from_end : 0)) * p.term_depth + k * tile_k;
      const int b_k = (first_term + (plan::a_terms > 1 ? term : from_end)) * p.term_depth + k * tile_k;
      shared.ring.acquire(at, (with_a ? ATile::bytes : 0) + (with_b ? BTile::bytes : 0), is_elected);
      if (is_elected) {
        ptx::Barrier& full = shared.ring.full[at.stage];
        if (with_a)
          ATile::load<dims>(shared.a[at.stage], p.a, first_m, a_k, batch * p.a_moves, full, 0, 1);
        if (with_b)
          BTile::load<dims>(shared.b[plan::stationary_b ? term : at.stage], p.b, first_n, b_k, batch * p.b_moves, full,
                            share.place, whole_cluster);
      }
      if constexpr (plan::stationary_b)
        last = at;
      at.advance();
    }
}

__device__ __forceinline__ void produce(const Parameters& p, Shared& shared, Share share, bool special) {
  Ring::Position at, last;
  int columns = -1;  // whose tile of B stays
  int loaded = 0;
  const bool is_elected = ptx::elect_one();
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    if (loaded++ == 1 && !shared.passes(p))
      break;
    const Work work = shared.without_zeros(tiles.urgent_work(), p.schedule);
    const bool load_b = !plan::stationary_b || work.tile.n != columns;
    if (plan::stationary_b && load_b && columns >= 0)
      shared.ring.wait_empty(last);  // then nobody needs the old one
    columns = work.tile.n;
    if (special)
      load_terms<1>(p, shared, share, work, plan::terms, load_b, is_elected, at, last);
    load_terms<plan::terms>(p, shared, share, work, 0, load_b, is_elected, at, last);
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, 1) gemm_fp32(const __grid_constant__ Parameters p) {
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
      shared.Check::init();
    }
    shared.ring.init<plan::threads / 32>(warp);
  }
  cluster_sync();
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  shared.find(p.a_extents, p.b_extents, p.schedule);

  // In this order ptxas puts the producer first, whose first load is to start while the rest of the code arrives.
  if (warp >= 4) {
    ptx::registers_increase<plan::consumer_registers>();
    const int consumer = warp / 4 - 1;
    if constexpr (plan::runs == Runs::if_out_of_range)
      consume_full_range_terms<PromotedProducts>(p, shared, share, consumer, special);
    else if constexpr (promotes && plan::tile_n > plan::max_promoted_tile_n)
      consume_single_steps<PromotedProducts>(p, shared, share, consumer);
    else if constexpr (promotes)
      consume_terms<PromotedProducts>(p, shared, share, consumer);
    else
      consume(p, shared, share, consumer);
  } else {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0)
      produce(p, shared, share, special);
    if (0 < warp && warp <= Check::warps)
      shared.count(p, warp - 1);
    __syncwarp();
  }
  // A neighbour may still write to this block's shared memory, or arrive at its barriers.
  if constexpr (plan::cluster > 1)
    cluster_sync();
}

}  // namespace tilesmith
