// How a consumer multiplies a step along K of a TF32 A that goes through registers: see turned_tile.cuh for the reason,
// and mma.cuh for all others.
#pragma once

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/turned_tile.cuh"
#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"

namespace tilesmith {

static_assert(plan::tf32 && plan::a_mn_major && !plan::stationary_b);

using ATile = TurnedTile<plan::tile_m>;
using Ring = Pipeline<plan::stages, consumers, plan::cluster, 4>;

// The fragments of half a stage are read while the products of the other half run.
class Products {
  static constexpr int half = ATile::steps / 2;
  using Fragments = ATile::Fragment[half];

  Ring& ring_;
  const unsigned a_;  // this consumer's rows in the first stage
  const unsigned char* const b_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  const ATile::Reader reader_;
  Ring::Position at_, previous_;
  Fragments first_, second_;

  template <int from, int step = 0>
  __device__ __forceinline__ void read(Fragments& to) const {
    if constexpr (step < half) {
      reader_.read<from + step>(a_ + at_.stage * ATile::bytes, to[step]);
      read<from, step + 1>(to);
    }
  }

  // Starts the products of half a stage.
  template <int from>
  __device__ __forceinline__ void multiply(Fragments& a, bool accumulate) {
    read<from>(a);
    const auto b = BTile::descriptor(b_ + at_.stage * BTile::bytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < half; ++step)
      ptx::wgmma(sum, a[step], ptx::descriptor_advance(b, (from + step) * BTile::step_bytes), accumulate || step > 0);
    ptx::wgmma_commit();
  }

  // Products that were under way up to here have read them.
  static __device__ __forceinline__ void keep(const Fragments& a) {
#pragma unroll
    for (int step = 0; step < half; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::keep_until_here(a[step][i]);
  }

  __device__ __forceinline__ void advance() {
    previous_ = at_;
    at_.advance();
  }

 public:
  float sum[elements];

  __device__ __forceinline__ Products(Ring& ring, const unsigned char* a_stages, const unsigned char* b_stages,
                                      int consumer)
      : ring_(ring),
        a_(ptx::shared_address(a_stages) + consumer * ATile::group_bytes),
        b_(b_stages),
        reader_(threadIdx.x % warpgroup_threads) {}

  __device__ __forceinline__ void first() {
    ring_.wait_full(at_);
    multiply<0>(first_, false);
    multiply<half>(second_, true);
    advance();
  }
  __device__ __forceinline__ void next() {
    ring_.wait_full(at_);
    ptx::wgmma_wait<1>();
    keep(first_);
    multiply<0>(first_, true);
    ptx::wgmma_wait<1>();
    keep(second_);
    ring_.release(previous_, thread_);
    multiply<half>(second_, true);
    advance();
  }
  __device__ __forceinline__ void finish() {
    ptx::wgmma_wait<0>();
    keep(first_);
    keep(second_);
    ring_.release(previous_, thread_);
  }
};

}  // namespace tilesmith
