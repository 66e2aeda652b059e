// A consumer's results are float32: sums whose operands' scales are undone; and with an epilogue
// activation(scale * sum + bias) + residual_scale * residual of those, all of it in registers.
#pragma once

#include "kernels/activation.cuh"
#include "kernels/hopper/scales.cuh"
#include "kernels/hopper/sending.cuh"
#include "kernels/hopper/tile_epilogue.cuh"
#include "ptx/barrier.cuh"

namespace tilesmith {

static_assert(sizeof(Output) == sizeof(float) && !plan::store_waits);

struct SharedColumns : ColumnScales, ColumnBias<has_column_bias> {};

class WideEpilogue : public TileEpilogue {
  // Where the thread's rows of the residual begin.
  struct RowStarts {
    const Output* first[2];
  };
  __device__ __forceinline__ RowStarts residual_rows() const {
    return {epilogue_.residual_from(first_m_, first_n_), epilogue_.residual_from(first_m_ + 8, first_n_)};
  }
  // Of the pair of columns that is the j-th of the thread, in its row h.
  __device__ __forceinline__ Vector<Output, 2> residuals(const RowStarts& rows, int j, int h) const {
    Vector<Output, 2> found = {};
    if (first_m_ + 8 * h < end_m_ && first_n_ + 8 * j < end_n_) {
      if constexpr (plan::residual_vector > 1) {
        found = *reinterpret_cast<const Vector<Output, 2>*>(rows.first[h] + 8 * j);
      } else {
        const Output* const own = rows.first[h] + 8 * j * epilogue_.residual_step_n();
        found = {own[0], first_n_ + 8 * j + 1 < end_n_ ? own[epilogue_.residual_step_n()] : Output{}};
      }
    }
    return found;
  }

 public:
  using TileEpilogue::TileEpilogue;

  // All of it, for `columns` columns from `first` on.
  template <int first, int columns>
  __device__ __forceinline__ void apply(float (&results)[elements]) const {
    if constexpr (has_residual && !has_activation) {
      const RowStarts rows = residual_rows();
      begin<first, columns>(results, [&](int j, int h) { return residuals(rows, j, h); });
    } else {
      begin<first, columns>(results);
    }
    if constexpr (has_activation)
      end<first, columns>(results);
  }

 private:
  template <int first, int columns>
  __device__ __forceinline__ void end(float (&results)[elements]) const {
#pragma unroll
    for (int i = first / 2; i < (first + columns) / 2; ++i)
      results[i] = with_activation<plan::activation, Output>(results[i]);
    if constexpr (!has_residual)
      return;
    const RowStarts rows = residual_rows();
#pragma unroll
    for (int j = first / 8; j < (first + columns) / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Vector<Output, 2> residual = residuals(rows, j, h);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = results[4 * j + 2 * h + e];
          x = added(x, residual.element[e]);
        }
      }
  }
};

class Delivery : public Sending {
  float* const column_bias_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  Scales scales_;
  int first_column_ = -1;  // whose scales and bias are in shared memory
  Destination to_;
  WideEpilogue epilogue_;

  __device__ __forceinline__ bool has_columns(const Work& work) const {
    return plan::stationary_b && share_.first_n(work.tile) == first_column_;
  }

  // The first of the thread's two.
  __device__ __forceinline__ int own_row(const Work& work) const {
    return share_.first_m(work.tile) + consumer_ * wgmma_m + thread_ / 32 * 16 + thread_ % 32 / 4;
  }

 public:
  // What is to be known of a tile's rows and columns.
  struct Ahead {
    Scales::OfTile scales;
    TileBias bias;

    __device__ __forceinline__ Ahead() {}  // nothing that is not asked for is set
  };

  template <typename Shared>
  __device__ __forceinline__ Delivery(const Parameters& p, Shared& shared, Share share, int consumer)
      : Sending(p, shared, share, consumer),
        column_bias_(shared.column_bias(consumer)),
        barrier_(1 + consumer),
        scales_(shared, consumer),
        epilogue_(p.epilogue, plan::out_along_m ? p.out_lines.length : p.out_lines.count,
                  plan::out_along_m ? p.out_lines.count : p.out_lines.length, shared.column_bias(consumer)) {}

  // Starts to read what is to be known of a tile.
  __device__ __forceinline__ Ahead read_ahead(const Work& work) const {
    Ahead ahead;
    if constexpr (has_epilogue)
      epilogue_.read_bias(ahead.bias, own_row(work), share_.first_n(work.tile), thread_);
    const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
    const int* const columns = Scales::of_columns(p_, batch) + share_.first_n(work.tile);
    ahead.scales = {Scales::of_rows(p_, batch) + own_row(work), has_columns(work) ? nullptr : columns, thread_};
    return ahead;
  }
  __device__ __forceinline__ void read_late(Ahead&, const Work&) const {}

  // The next results are those of a tile of which this is known.
  __device__ __forceinline__ void prepare(const Work& work, const Ahead& ahead) {
    to_ = destination(p_, work, share_, consumer_);
    if constexpr (has_epilogue)
      epilogue_.move_to(to_.batch, own_row(work), to_.first_n, ahead.bias);
    scales_.take_rows(ahead.scales);
    if (has_columns(work))
      return;
    first_column_ = share_.first_n(work.tile);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);  // all have used the last ones
    scales_.put_columns(ahead.scales, thread_);
    if constexpr (has_column_bias)
      ahead.bias.put_columns(column_bias_, thread_);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }

  // The sums of a tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], const Work& work, const Ahead& ahead) {
    prepare(work, ahead);
    results.take(sum);
  }

  template <int chunk = 0>
  __device__ __forceinline__ void store(Results& results) const {
    if constexpr (chunk < chunks) {
      scales_.undo<chunk * plan::chunk, plan::chunk>(results.values, thread_);
      if constexpr (has_epilogue)
        epilogue_.apply<chunk * plan::chunk, plan::chunk>(results.values);
      storer.store<chunk>(results, to_);
      store<chunk + 1>(results);
    }
  }
};

}  // namespace tilesmith
