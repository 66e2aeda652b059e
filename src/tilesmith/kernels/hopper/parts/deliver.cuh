// A consumer's results are the sums as they are.
#pragma once

#include "kernels/hopper/sending.cuh"

namespace tilesmith {

static_assert(!plan::epilogue::any && plan::activation == Activation::none && plan::residual_vector == 0);

// In shared memory there is nothing of columns.
struct SharedColumns {};

class Delivery : public Sending {
 public:
  Destination to;  // of the results that are stored next

  template <typename Shared>
  __device__ __forceinline__ Delivery(const Parameters& p, Shared& shared, Share share, int consumer)
      : Sending(p, shared, share, consumer) {}

  // Others read bias and residual meanwhile.
  struct Ahead {};
  __device__ __forceinline__ Ahead read_ahead(const Work&) const { return {}; }
  __device__ __forceinline__ void read_late(Ahead&, const Work&) const {}

  // The sums of a tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], const Work& work, Ahead&) {
    to = destination(p_, work, share_, consumer_);
    results.take(sum);
  }

  template <int chunk = 0>
  __device__ __forceinline__ void store(const Results& results) const {
    if constexpr (chunk < chunks) {
      storer.store<chunk>(results, to);
      store<chunk + 1>(results);
    }
  }

  // Others change results that are staged.
  template <typename Meanwhile>
  __device__ __forceinline__ void change(int, const Meanwhile&) const {}
};

}  // namespace tilesmith
