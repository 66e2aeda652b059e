// The steps of a tile along K are several sums of the tensor cores, which are added with rounding: what the tensor
// cores cut off grows with a sum.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(plan::short_sums && !plan::only_stores && !plan::store_waits);
static_assert(sizeof(Output) == sizeof(float), "totals of short sums are results");

// Those after the first one.
class Steps {
  Products& products_;
  const int count_, max_;  // of the tile, and of a sum
  bool has_total_ = false;

 public:
  __device__ __forceinline__ Steps(Products& products, const Work& work, const plan::Schedule& schedule)
      : products_(products), count_(work.k_steps), max_(schedule.sum_steps) {}

  // Adds up all sums but the last one in `total`.
  __device__ __forceinline__ void all(Results& total) {
    int in_sum = 1;
    total.clear();
    for (int k = 1; k < count_; ++k) {
      if (in_sum < max_) {
        products_.next();
        ++in_sum;
      } else {
        products_.finish();
        total.add(products_.sum);
        has_total_ = true;
        products_.first();
        in_sum = 1;
      }
    }
  }
  // Then the sums are there.
  __device__ __forceinline__ void finish(const Results& total) {
    products_.finish();
    if (has_total_)
      total.add_to(products_.sum);
  }
};

}  // namespace tilesmith
