// The end of a consumer's tile: where it goes, and on which way.
#pragma once

#include "batch.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/hopper/common.cuh"
#include "kernels/hopper/tile_epilogue.cuh"
#include "kernels/hopper/tile_residual.cuh"
#include "ptx/barrier.cuh"
#include "scheduler.cuh"
#include "tile_store.cuh"

namespace tilesmith {

__device__ __forceinline__ Destination<Output> destination(const Parameters& p, const Work& work, Share share,
                                                           int consumer) {
  Destination<Output> to = {BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size), p.out_lines.first,
                            share.first_m(work.tile) + consumer * wgmma_m, share.first_n(work.tile)};
  if (several && p.out_is_partial)
    to.batch = {{work.k_part * p.schedule.batches + work.batch}};
#pragma unroll
  for (int d = 0; d < plan::batch_dims; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[d];
  return to;
}

// Sums that are rounded when they are taken need the residual before: it is staged.
constexpr int staged_residual_vector = adds_first && sizeof(Output) < sizeof(float) ? plan::residual_vector : 0;
// A tile leaves registers for the first columns of its residual while it is multiplied.
constexpr bool has_registers = plan::tile_n <= 128;

// The residual of a warp's rows, if it is staged.
template <int vector>
struct StagedResidual {
  using type = ResidualRows<Output, ResultStorer::Chunk, vector, has_registers>;
};
template <>
struct StagedResidual<0> {
  struct type {};
};

// What undoes the scales of operands that have none. Others: scales.cuh.
struct Unscaled {
  static constexpr bool any = false;
  struct OfTile {};

  template <typename Shared>
  __device__ __forceinline__ Unscaled(Shared&, int) {}
};

// Brings results to the output. On the way their scales are undone, and the epilogue is applied: to those that wait
// rounded in two steps, of which the first is when they are taken.
template <typename Results, typename Scales, typename Residual = typename StagedResidual<staged_residual_vector>::type>
class EpilogueDriver {
  const Parameters& p_;
  const Share share_;
  const int consumer_;
  const ResultStorer storer_;
  float* const column_bias_;
  const int barrier_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  Scales scales_;
  int first_column_ = -1;  // whose scales and bias are in shared memory
  Destination<Output> to_;
  TileEpilogue<Output, OwnEpilogue> epilogue_;

  static constexpr bool wait_rounded = sizeof(Output) < sizeof(float);
  static constexpr bool stages_residual = staged_residual_vector > 0;
  static_assert(!stages_residual || !plan::out_along_m);

  // The second step, in shared memory: there a thread has neighbours in a line, and the code for a few of them does for
  // all.
  struct StagedEpilogue {
    const TileEpilogue<Output, OwnEpilogue>& epilogue;
    int first_m, first_n;

    __device__ __forceinline__ Vector<unsigned, 4> operator()(const Vector<unsigned, 4>& staged, int m, int n) const {
      return epilogue.template end<plan::out_along_m>(staged, first_m + m, first_n + n);
    }
  };
  static constexpr bool shares_columns = Scales::any || has_column_bias;

  __device__ __forceinline__ bool has_columns(const Work& work) const {
    return plan::stationary_b && share_.first_n(work.tile) == first_column_;
  }

  __device__ __forceinline__ int row_of_warp(const Work& work) const {
    return share_.first_m(work.tile) + consumer_ * wgmma_m + thread_ / 32 * 16;
  }
  // The first of the thread's two.
  __device__ __forceinline__ int own_row(const Work& work) const { return row_of_warp(work) + thread_ % 32 / 4; }

  __device__ __forceinline__ Residual residual_of(const Work& work) const {
    const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
    return epilogue_.template residual_from<Residual>(batch, row_of_warp(work), share_.first_n(work.tile));
  }

  // The first step from a column on, with a residual that is staged a few columns at a time: each is read while those
  // before are added.
  template <int from = 0>
  __device__ __forceinline__ void begin_staged(float (&sum)[elements], Residual& residual, unsigned lent) const {
    if constexpr (from < plan::tile_n) {
      constexpr int next = from + Residual::columns;
      static_assert(plan::tile_n % Residual::columns == 0);
      const int line = storer_.first_lent_line();
      residual.stage(lent, line);
      __syncwarp();
      if constexpr (next < plan::tile_n)
        residual.read(next);
      epilogue_.template begin<from, Residual::columns>(
          sum, [&](int j, int h) { return Residual::pair(lent, line, j - from / 8, h); });
      __syncwarp();
      begin_staged<next>(sum, residual, lent);
    }
  }

  template <int from = 0>
  __device__ __forceinline__ void store_chunks(Results& results) const {
    if constexpr (from < chunks) {
      if constexpr (Scales::any)
        scales_.template undo<from * plan::chunk, plan::chunk>(results.values, thread_);
      if constexpr (has_epilogue && !wait_rounded) {
        epilogue_.template begin<from * plan::chunk, plan::chunk>(results.values);
        if constexpr (is_in_two_steps)
          epilogue_.template end<from * plan::chunk, plan::chunk>(results.values);
      }
      if constexpr (ResultStorer::is_direct) {
        storer_.template store<from>(results, to_);
      } else {
        storer_.template stage<from>(results);
        if constexpr (changes_staged) {
          for (int turn = 0; turn < ResultStorer::turns; ++turn) change(from, turn);
          storer_.end_changes();
        }
#pragma unroll 1
        for (int part = 0; part < ResultStorer::parts; ++part) storer_.send(from, part, to_);
      }
      store_chunks<from + 1>(results);
    }
  }

 public:
  static constexpr bool changes_staged = is_in_two_steps && wait_rounded;

  // What is to be known of a tile's rows and columns.
  struct Facts {
    typename Scales::OfTile scales;
    TileBias<plan::tile_n, warpgroup_threads> bias;

    __device__ __forceinline__ Facts() {}  // nothing that is not asked for is set
  };

  template <typename Shared>
  __device__ __forceinline__ EpilogueDriver(const Parameters& p, Shared& shared, Share share, int consumer)
      : p_(p),
        share_(share),
        consumer_(consumer),
        storer_(p.out, p.out_lines, shared.staged(consumer), 1 + consumer),
        column_bias_(shared.column_bias(consumer)),
        barrier_(1 + consumer),
        scales_(shared, consumer),
        epilogue_(p.epilogue, plan::out_along_m ? p.out_lines.length : p.out_lines.count,
                  plan::out_along_m ? p.out_lines.count : p.out_lines.length, shared.column_bias(consumer)) {}

  // Starts to read what is to be known of a tile.
  __device__ __forceinline__ Facts facts(const Work& work) const {
    Facts facts;
    if constexpr (has_epilogue)
      epilogue_.read_bias(facts.bias, own_row(work), share_.first_n(work.tile), thread_);
    if constexpr (Scales::any) {
      const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
      const int* const columns = Scales::of_columns(p_, batch) + share_.first_n(work.tile);
      facts.scales = {Scales::of_rows(p_, batch) + own_row(work), has_columns(work) ? nullptr : columns, thread_};
    }
    return facts;
  }

  // The next results are those of a tile of which this is known.
  __device__ __forceinline__ void prepare(const Work& work, const Facts& facts) {
    to_ = destination(p_, work, share_, consumer_);
    if constexpr (has_epilogue)
      epilogue_.move_to(to_.batch, own_row(work), to_.first_n, facts.bias);
    if constexpr (!shares_columns)
      return;
    if constexpr (Scales::any)
      scales_.take_rows(facts.scales);
    if (has_columns(work))
      return;
    first_column_ = share_.first_n(work.tile);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);  // all have used the last ones
    if constexpr (Scales::any)
      scales_.put_columns(facts.scales, thread_);
    if constexpr (has_column_bias)
      facts.bias.put_columns(column_bias_, thread_);
    ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }

  // Starts to read the residual of a tile; or has L2 read it, if there are no registers yet, or results wait for it.
  __device__ __forceinline__ Residual residual(const Work& work) const {
    if constexpr (stages_residual) {
      Residual residual = residual_of(work);
      residual.template prefetch<plan::tile_n>();
      if constexpr (has_registers)
        residual.read(0);
      return residual;
    } else {
      if constexpr (changes_staged && has_residual && !plan::out_along_m) {
        const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
        using Rows = ResidualRows<Output, ResultStorer::Chunk, 1, false>;
        if (epilogue_.has_rows_of_residual())
          epilogue_.template residual_from<Rows>(batch, row_of_warp(work), share_.first_n(work.tile))
              .template prefetch<plan::tile_n>();
      }
      return {};
    }
  }
  // The sums of the tile are nearly complete, and there are.
  __device__ __forceinline__ void read(Residual& residual, const Work& work) const {
    if constexpr (stages_residual && !has_registers) {
      residual = residual_of(work);
      residual.read(0);
    }
  }

  // The sums of the tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], Residual& residual) const {
    if constexpr (stages_residual)
      begin_staged(sum, residual, storer_.lend());
    else if constexpr (has_epilogue && wait_rounded)
      epilogue_.template begin<0, plan::tile_n>(sum);
    results.take(sum);
  }

  __device__ __forceinline__ void store(Results& results) const { store_chunks(results); }

  // The same in steps, with time for other work in between. Staged results are changed in a few turns.
  template <int chunk>
  __device__ __forceinline__ void stage(const Results& results) const {
    storer_.template stage<chunk>(results);
  }
  __device__ __forceinline__ void change(int chunk, int turn) const {
    storer_.change(chunk, turn, StagedEpilogue{epilogue_, to_.first_m, to_.first_n});
  }
  __device__ __forceinline__ void end_changes() const { storer_.end_changes(); }
  __device__ __forceinline__ void send(int chunk, int part) const { storer_.send(chunk, part, to_); }

  __device__ __forceinline__ void drain() const { storer_.drain(); }
};

}  // namespace tilesmith
