// The range check of operands that are sums of terms. Warps that have nothing else to do read the range statistics
// while the others multiply the first tile: none of its results leaves before.
#pragma once

#include "kernels/fp32_split/range_check.cuh"
#include "kernels/hopper/common.cuh"
#include "ptx/barrier.cuh"

namespace tilesmith {

template <bool any>
struct PendingCheck {
  static constexpr int warps = 2;  // one for each operand

  RangeStats total[warps];
  alignas(16) ptx::Barrier counted;

  // One thread, before all others wait for it.
  __device__ __forceinline__ void init() { ptx::barrier_init(counted, warps); }

  // Each of the warps. The first block leaves the range check to the next launch.
  __device__ __forceinline__ void count(const Parameters& p, int warp) {
    const bool of_a = warp == 0;
    const RangeStats found =
        total_of_blocks(of_a ? p.a_range_stats : p.b_range_stats, of_a ? p.a_range_stats_count : p.b_range_stats_count,
                        of_a ? p.a_k_chunks : p.b_k_chunks);
    if (threadIdx.x % 32 == 0) {
      total[warp] = found;
      ptx::barrier_arrive(counted);
      if (blockIdx.x == 0 && warp == 0)
        *p.range_check = check(p);
    }
  }

  // Whether results count. Those who ask wait for it.
  __device__ __forceinline__ bool passes(const Parameters& p) { return check(p) == RangeCheck::in_range; }

 private:
  __device__ __forceinline__ RangeCheck check(const Parameters& p) {
    ptx::barrier_wait(counted, 0);
    return range_check(total[0], total[1], p.depth);
  }
};
template <>
struct PendingCheck<false> {
  static constexpr int warps = 0;
  __device__ __forceinline__ void init() {}
  __device__ __forceinline__ void count(const Parameters&, int) {}
  __device__ __forceinline__ bool passes(const Parameters&) { return true; }
};

}  // namespace tilesmith
