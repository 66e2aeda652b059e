// A consumer's results are 16-bit: activation(scale * sum + bias) + residual_scale * residual. What comes before the
// activation is rounded when it is taken. The rest is done in shared memory: there a thread has neighbours in a line,
// and the code for a few of them does for all.
#pragma once

#include "kernels/activation.cuh"
#include "kernels/hopper/narrow_epilogue.cuh"
#include "kernels/hopper/tile_residual.cuh"
#include "ptx/shared.cuh"

namespace tilesmith {

static_assert(has_activation);

class ActivatedEpilogue : public TileEpilogue {
  static constexpr int per_vector = 16 / sizeof(Output);

  // Of neighbours in a line from an element on: by one access if they are neighbours in memory, too.
  __device__ __forceinline__ Vector<Output, per_vector> residual_along(int m, int n) const {
    using Together = Vector<Output, per_vector>;
    const Output* const first = epilogue_.residual_from(m, n);
    const long long step = plan::out_along_m ? epilogue_.residual_step_m() : epilogue_.residual_step_n();
    const int left = m < end_m_ && n < end_n_ ? (plan::out_along_m ? end_m_ - m : end_n_ - n) : 0;
    if (step == 1 && left >= per_vector && reinterpret_cast<unsigned long long>(first) % sizeof(Together) == 0)
      return *reinterpret_cast<const Together*>(first);
    Together found = {};
#pragma unroll
    for (int i = 0; i < per_vector; ++i)
      if (i < left)
        found.element[i] = first[i * step];
    return found;
  }

 public:
  using TileEpilogue::TileEpilogue;

  // Whether the residual's rows are contiguous.
  __device__ __forceinline__ bool has_rows_of_residual() const { return epilogue_.residual_step_n() == 1; }

  // The second step, of neighbours in a line that are rounded already, from row m and column n on.
  __device__ __forceinline__ Vector<unsigned, 4> end(const Vector<unsigned, 4>& staged, int m, int n) const {
    Vector<Output, per_vector> residual;
    if constexpr (has_residual)
      residual = residual_along(m, n);
    Vector<unsigned, 4> stored;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float pair[2] = {widen<float>(Output{static_cast<unsigned short>(staged.element[i])}),
                       widen<float>(Output{static_cast<unsigned short>(staged.element[i] >> 16)})};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        pair[e] = with_activation<plan::activation, Output>(pair[e]);
        if constexpr (has_residual)
          pair[e] = added(pair[e], residual.element[2 * i + e]);
      }
      stored.element[i] = narrow_pair<Output>(pair[0], pair[1]);
    }
    return stored;
  }
};

class Delivery : public NarrowEpilogue<ActivatedEpilogue> {
  using Chunk = Storer::Chunk;

  // Each of those who have staged a chunk changes 16 bytes of a line in each turn.
  static constexpr int per_vector = 16 / sizeof(Output);
  static constexpr int vectors = Chunk::lines * Chunk::length / per_vector;
  static constexpr int changers = plan::out_by_warp ? 32 : warpgroup_threads;
  static constexpr int turns = (vectors + changers - 1) / changers;

  struct Ending {
    const ActivatedEpilogue& epilogue;
    int first_m, first_n;  // of the consumer's part of the tile

    __device__ __forceinline__ Vector<unsigned, 4> operator()(const Vector<unsigned, 4>& staged, int m, int n) const {
      return epilogue.end(staged, first_m + m, first_n + n);
    }
  };

  __device__ __forceinline__ void change_some(int chunk, int turn) const {
    change_some(chunk, turn, Ending{epilogue_, to.first_m, to.first_n});
  }
  __device__ __forceinline__ void change_some(int chunk, int turn, const Ending& ended) const {
    const int thread = plan::out_by_warp ? storer.lane() : static_cast<int>(threadIdx.x) % warpgroup_threads;
    const int vector = turn * changers + thread;
    if (vectors % changers != 0 && vector >= vectors)
      return;
    const int line = vector / (Chunk::length / per_vector), at = vector % (Chunk::length / per_vector) * per_vector;
    const int first_m = storer.first_m(), first_n = storer.first_n(chunk);
    const unsigned address = Chunk::address(storer.chunk(chunk), line, at);
    ptx::shared_store(address, ended(ptx::shared_load_vector(address), first_m + (plan::out_along_m ? at : line),
                                     first_n + (plan::out_along_m ? line : at)));
  }

 public:
  template <typename Shared>
  __device__ __forceinline__ Delivery(const Parameters& p, Shared& shared, Share share, int consumer)
      : NarrowEpilogue(p, shared, share, consumer) {}

  struct Ahead {
    TileBias bias;
  };
  // Starts to read the bias of a tile, and has L2 read its residual.
  __device__ __forceinline__ Ahead read_ahead(const Work& work) const {
    Ahead ahead;
    read_bias(ahead.bias, work);
    if constexpr (has_residual && !plan::out_along_m) {
      const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p_.batch_size);
      using Rows = ResidualRows<Output, Chunk, 1, false>;
      if (epilogue_.has_rows_of_residual())
        epilogue_.residual_from<Rows>(batch, row_of_warp(work), share_.first_n(work.tile)).prefetch<plan::tile_n>();
    }
    return ahead;
  }
  __device__ __forceinline__ void read_late(Ahead&, const Work&) const {}

  // The sums of a tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], const Work& work, Ahead& ahead) {
    prepare(work, ahead.bias);
    epilogue_.begin<0, plan::tile_n>(sum);
    results.take(sum);
  }

  template <int chunk = 0>
  __device__ __forceinline__ void store(const Results& results) const {
    if constexpr (chunk < chunks) {
      storer.stage<chunk>(results);
      for (int turn = 0; turn < turns; ++turn) change_some(chunk, turn);
      storer.publish();
#pragma unroll 1
      for (int part = 0; part < Storer::parts; ++part) storer.send(chunk, part, to);
      store<chunk + 1>(results);
    }
  }

  // The same in steps, with time for other work in between.
  template <typename Meanwhile>
  __device__ __forceinline__ void change(int chunk, const Meanwhile& meanwhile) const {
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      change_some(chunk, turn);
      meanwhile();
    }
    storer.publish();
  }
};

}  // namespace tilesmith
