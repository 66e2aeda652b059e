// The steps of a tile along K are one sum of the tensor cores.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(!plan::short_sums && !plan::only_stores);

// Those after the first one.
class Steps {
  Products& products_;
  const int count_;
  int next_ = 1;

 public:
  __device__ __forceinline__ Steps(Products& products, const Work& work, const plan::Schedule&)
      : products_(products), count_(work.k_steps) {}

  __device__ __forceinline__ void next() {
    if (next_++ < count_)
      products_.next();
  }
  __device__ __forceinline__ void all(Results&) {
    for (; next_ < count_; ++next_) products_.next();
  }
  // Then the sums are there.
  __device__ __forceinline__ void finish(const Results&) { products_.finish(); }
};

}  // namespace tilesmith
