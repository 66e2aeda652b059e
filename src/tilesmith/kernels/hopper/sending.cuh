// What a plan's Delivery begins with, whatever it does to results: where in the output they go, and who stores them.
#pragma once

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/staging.cuh"

namespace tilesmith {

// In shared memory, unless results go to the output directly.
template <int bytes>
struct StagedIn {
  unsigned char out[consumers][bytes];

  __device__ __forceinline__ unsigned char* staged(int consumer) { return out[consumer]; }
};
template <>
struct StagedIn<0> {
  __device__ __forceinline__ unsigned char* staged(int) { return nullptr; }
};
using StagedResults = StagedIn<Storer::shared_bytes>;

__device__ __forceinline__ Destination destination(const Parameters& p, const Work& work, Share share, int consumer) {
  Destination to = {BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size), p.out_lines.first,
                    share.first_m(work.tile) + consumer * wgmma_m, share.first_n(work.tile)};
  if (several && p.out_is_partial)
    to.batch = {{work.k_part * p.schedule.batches + work.batch}};
#pragma unroll
  for (int d = 0; d < plan::batch_dims; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[d];
  return to;
}

class Sending {
 protected:
  const Parameters& p_;
  const Share share_;
  const int consumer_;

 public:
  const Storer storer;

  template <typename Shared>
  __device__ __forceinline__ Sending(const Parameters& p, Shared& shared, Share share, int consumer)
      : p_(p), share_(share), consumer_(consumer), storer(p.out, p.out_lines, shared.staged(consumer), 1 + consumer) {}
};

}  // namespace tilesmith
