// A consumer's results are 16-bit: scale * sum + bias.
#pragma once

#include "kernels/hopper/narrow_epilogue.cuh"

namespace tilesmith {

static_assert(!has_residual && !has_activation);

class Delivery : public NarrowEpilogue<TileEpilogue> {
 public:
  template <typename Shared>
  __device__ __forceinline__ Delivery(const Parameters& p, Shared& shared, Share share, int consumer)
      : NarrowEpilogue(p, shared, share, consumer) {}

  struct Ahead {
    TileBias bias;
  };
  __device__ __forceinline__ Ahead read_ahead(const Work& work) const {
    Ahead ahead;
    read_bias(ahead.bias, work);
    return ahead;
  }
  __device__ __forceinline__ void read_late(Ahead&, const Work&) const {}

  // The sums of a tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], const Work& work, Ahead& ahead) {
    prepare(work, ahead.bias);
    epilogue_.begin<0, plan::tile_n>(sum);
    results.take(sum);
  }
};

}  // namespace tilesmith
