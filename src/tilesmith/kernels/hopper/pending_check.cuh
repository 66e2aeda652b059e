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

  RangeStats total_of_b;
  ptx::Barrier has_total_of_b, has_found;
  alignas(16) RangeCheck found;

  // One thread, before all others wait for it.
  __device__ __forceinline__ void init() {
    ptx::barrier_init(has_total_of_b, 1);
    ptx::barrier_init(has_found, 1);
  }

  // Each of the warps. The first block leaves the range check to the next launch.
  __device__ __forceinline__ void count(const Parameters& p, int warp) {
    const bool of_a = warp == 0;
    const RangeStats total =
        total_of_blocks(of_a ? p.a_range_stats : p.b_range_stats, of_a ? p.a_range_stats_count : p.b_range_stats_count,
                        of_a ? p.a_k_chunks : p.b_k_chunks);
    if (threadIdx.x % 32 != 0)
      return;
    if (!of_a) {
      total_of_b = total;
      ptx::barrier_arrive(has_total_of_b);
      return;
    }
    ptx::barrier_wait(has_total_of_b, 0);
    found = range_check(total, total_of_b, p.depth);
    ptx::barrier_arrive(has_found);
    if (blockIdx.x == 0)
      *p.range_check = found;
  }

  // Whether results count. Those who ask wait for it.
  __device__ __forceinline__ bool passes() {
    ptx::barrier_wait(has_found, 0);
    return found == RangeCheck::in_range;
  }
};
template <>
struct PendingCheck<false> {
  static constexpr int warps = 0;
  __device__ __forceinline__ void init() {}
  __device__ __forceinline__ void count(const Parameters&, int) {}
  __device__ __forceinline__ bool passes() { return true; }
};

}  // namespace tilesmith
