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

#include "census.cuh"
#include "kernels/sm90/consume.cuh"
#include "kernels/sm90/consume_planes.cuh"
#include "kernels/sm90/consume_raw.cuh"
#include "kernels/sm90/produce.cuh"
#include "kernels/sm90/types.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

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

  bool special = false, only_counts = false;
  if constexpr (runs == Runs::if_planes_suffice) {
    const Census a = total<plan::a_slabs>(p.a_censuses, p.a_census_count);
    const Census b = total<plan::b_slabs>(p.b_censuses, p.b_census_count);
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
  } else if constexpr (plan::a_is_raw) {
    only_counts = needs_wide(total<plan::b_slabs>(p.b_censuses, p.b_census_count));
  }

  shared.find(p.a_extents, p.b_extents);

  if (warp < 4) {
    ptx::registers_decrease<plan::producer_registers>();
    if (warp == 0 && ptx::elect_one()) {
      if constexpr (plan::a_is_raw)
        produce_raw(p, shared, share, only_counts, special);
      else
        produce(p, shared, share, special);
    }
    __syncwarp();
  } else {
    ptx::registers_increase<plan::consumer_registers>();
    if constexpr (plan::a_is_raw && runs == Runs::if_they_do_not)
      consume_wide_raw<Results>(p, shared, share, warp / 4 - 1, special);
    else if constexpr (plan::a_is_raw)
      consume_raw<Results>(p, shared, share, warp / 4 - 1, only_counts);
    else if constexpr (runs == Runs::if_they_do_not)
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
