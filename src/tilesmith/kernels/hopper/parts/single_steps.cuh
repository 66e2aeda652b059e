// K is one step, which is the sum.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(!plan::short_sums && plan::only_stores);

// Those after the first one.
class Steps {
  Products& products_;

 public:
  __device__ __forceinline__ Steps(Products& products, const Work&, const plan::Schedule&) : products_(products) {}

  __device__ __forceinline__ void next() {}
  __device__ __forceinline__ void all(Results&) {}
  // Then the sums are there.
  __device__ __forceinline__ void finish(const Results&) { products_.finish(); }
};

}  // namespace tilesmith
