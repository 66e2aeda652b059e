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

// Brings results to the output. Their scales are undone on the way.
template <typename Results>
class Departure {
  const Parameters& p_;
  const Share share_;
  const int consumer_;
  const ResultStorer storer_;
  int* const column_scales_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  int row_scales_[2];
  int first_column_ = -1;  // whose scales are in shared memory
  Destination<Output> to_;

  __device__ __forceinline__ bool has_column_scales(const Schedule::Work& work) const {
    return plan::b_stays && share_.first_n(work.tile) == first_column_;
  }

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
  __device__ __forceinline__ Departure(const Parameters& p, Shared& shared, Share share, int consumer)
      : p_(p),
        share_(share),
        consumer_(consumer),
        storer_(p.out, p.out_lines, shared.staged(consumer), 1 + consumer),
        column_scales_(shared.column_scales(consumer)),
        barrier_(1 + consumer) {}

  // Starts to read the scales of a tile.
  __device__ __forceinline__ Scales scales(const Schedule::Work& work) const {
    if constexpr (scale == Scale::none)
      return {};
    const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p_.batch_size);
    const int row = share_.first_m(work.tile) + consumer_ * wgmma_m + thread_ / 32 * 16 + thread_ % 32 / 4;
    const int* const columns = p_.b_scales.of(batch) + share_.first_n(work.tile);
    return {p_.a_scales.of(batch) + row, has_column_scales(work) ? nullptr : columns, thread_};
  }

  // The next results are those of a tile with these scales.
  __device__ __forceinline__ void prepare(const Schedule::Work& work, const Scales& scales) {
    to_ = destination(p_, work, share_, consumer_);
    if constexpr (scale == Scale::none)
      return;
    row_scales_[0] = scales.rows[0];
    row_scales_[1] = scales.rows[1];
    if (has_column_scales(work))
      return;
    first_column_ = share_.first_n(work.tile);
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
