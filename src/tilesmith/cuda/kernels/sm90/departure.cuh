// The end of a consumer's tile: where it goes, and on which way.
#pragma once

#include "batch.cuh"
#include "epilogue.cuh"
#include "kernels/sm90/types.cuh"
#include "ptx/barrier.cuh"
#include "scale.cuh"
#include "scheduler.cuh"

namespace tilesmith {

__device__ __forceinline__ Destination<Output> destination(const Parameters& p, const Schedule::Work& work, Share share,
                                                           int consumer) {
  Destination<Output> to = {BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size), p.out_lines.first,
                            share.first_m(work.tile) + consumer * wgmma_m, share.first_n(work.tile)};
#pragma unroll
  for (int d = 0; d < plan::batch_rank; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[d];
  if constexpr (plan::out_is_partial)
    to.batch = {{work.split * p.schedule.batches + work.batch}};
  return to;
}

__device__ __forceinline__ Scales tile_scales(const Parameters& p, const Schedule::Work& work, Share share,
                                              int consumer) {
  if constexpr (scale == Scale::none)
    return {};
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  const int thread = threadIdx.x % warpgroup_threads;
  const int row = share.first_m(work.tile) + consumer * wgmma_m + thread / 32 * 16 + thread % 32 / 4;
  return {p.a_scales.of(batch) + row, p.b_scales.of(batch) + share.first_n(work.tile), thread};
}

// Brings results to the output. Their scales are undone on the way.
template <typename Results>
class Departure {
  const ResultStorer storer_;
  int* const column_scales_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  int row_scales_[2];
  Destination<Output> to_;

  template <int from = 0>
  __device__ __forceinline__ void store_chunks(Results& results) const {
    if constexpr (from < chunks) {
      if constexpr (scale != Scale::none)
        unscale<scale, from * plan::chunk, plan::chunk>(results.values, row_scales_, column_scales_ + thread_ % 4 * 2);
      if constexpr (ResultStorer::is_direct) {
        storer_.template store<from>(results, to_);
      } else {
        storer_.template stage<from>(results);
        for (int part = 0; part < ResultStorer::parts; ++part) storer_.send(from, part, to_);
      }
      store_chunks<from + 1>(results);
    }
  }

 public:
  __device__ __forceinline__ Departure(const Parameters& p, Shared& shared, int consumer)
      : storer_(p.out, p.out_lines, shared.out[consumer], 1 + consumer),
        column_scales_(shared.column_scales[consumer]),
        barrier_(1 + consumer) {}

  // Where the next results go.
  __device__ __forceinline__ void prepare(const Destination<Output>& to, const Scales& scales) {
    to_ = to;
    if constexpr (scale == Scale::none)
      return;
    row_scales_[0] = scales.rows[0];
    row_scales_[1] = scales.rows[1];
    ptx::named_barrier_sync(barrier_, warpgroup_threads);  // all have used the last ones
    scales.put_columns(column_scales_, thread_);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }

  __device__ __forceinline__ void store(Results& results) const { store_chunks(results); }

  // The same in steps, with time for other work in between.
  template <int chunk>
  __device__ __forceinline__ void stage(const Results& results) const {
    storer_.template stage<chunk>(results);
  }
  __device__ __forceinline__ void send(int chunk, int part) const { storer_.send(chunk, part, to_); }

  __device__ __forceinline__ void finish() const { storer_.finish(); }
};

}  // namespace tilesmith
