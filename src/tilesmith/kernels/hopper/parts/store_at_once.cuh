// Results are stored as soon as a tile is complete.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(!plan::store_waits);

struct Outgoing {
  // While the tensor cores multiply.
  __device__ __forceinline__ void store_meanwhile(const Delivery&, const Results&, Steps&) {}

  // Results of a tile are there.
  __device__ __forceinline__ void store(const Delivery& delivery, Results& results) { delivery.store(results); }

  // There are no more.
  __device__ __forceinline__ void finish(const Delivery& delivery, const Results&) { delivery.storer.drain(); }
};

}  // namespace tilesmith
