// What all Deliveries of 16-bit results with an epilogue have in common: factor and bias are applied to sums, before
// they are rounded.
#pragma once

#include "kernels/hopper/sending.cuh"
#include "kernels/hopper/tile_epilogue.cuh"
#include "ptx/barrier.cuh"

namespace tilesmith {

static_assert(sizeof(Output) == 2 && plan::epilogue::any);

using SharedColumns = ColumnBias<has_column_bias>;

template <typename Epilogue>
class NarrowEpilogue : public Sending {
  float* const column_bias_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  int first_column_ = -1;  // whose bias is in shared memory

  __device__ __forceinline__ bool has_columns(const Work& work) const {
    return plan::stationary_b && share_.first_n(work.tile) == first_column_;
  }

  // The first of the thread's two.
  __device__ __forceinline__ int own_row(const Work& work) const { return row_of_warp(work) + thread_ % 32 / 4; }

 public:
  Destination to;  // of the results that are stored next

 protected:
  Epilogue epilogue_;

  __device__ __forceinline__ int row_of_warp(const Work& work) const {
    return share_.first_m(work.tile) + consumer_ * wgmma_m + thread_ / 32 * 16;
  }

  // The residual of the warp's rows in a tile.
  template <typename Rows>
  __device__ __forceinline__ Rows residual_of(const Work& work) const {
    const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
    return epilogue_.template residual_from<Rows>(batch, row_of_warp(work), share_.first_n(work.tile));
  }

  // Starts to read the bias of a tile.
  __device__ __forceinline__ void read_bias(TileBias& bias, const Work& work) const {
    epilogue_.read_bias(bias, own_row(work), share_.first_n(work.tile), thread_);
  }

  // The next results are those of this tile, and this is its bias.
  __device__ __forceinline__ void prepare(const Work& work, const TileBias& bias) {
    to = destination(p_, work, share_, consumer_);
    epilogue_.move_to(to.batch, own_row(work), to.first_n, bias);
    if constexpr (!has_column_bias)
      return;
    if (has_columns(work))
      return;
    first_column_ = share_.first_n(work.tile);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);  // all have used the last one
    bias.put_columns(column_bias_, thread_);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }

 public:
  template <typename Shared>
  __device__ __forceinline__ NarrowEpilogue(const Parameters& p, Shared& shared, Share share, int consumer)
      : Sending(p, shared, share, consumer),
        column_bias_(shared.column_bias(consumer)),
        barrier_(1 + consumer),
        epilogue_(p.epilogue, plan::out_along_m ? p.out_lines.length : p.out_lines.count,
                  plan::out_along_m ? p.out_lines.count : p.out_lines.length, shared.column_bias(consumer)) {}

  template <int chunk = 0>
  __device__ __forceinline__ void store(const Results& results) const {
    if constexpr (chunk < chunks) {
      storer.template store<chunk>(results, to);
      store<chunk + 1>(results);
    }
  }

  // Staged results stay as they are.
  template <typename Meanwhile>
  __device__ __forceinline__ void change(int, const Meanwhile&) const {}
};

}  // namespace tilesmith
