// A consumer's results are 16-bit: scale * sum + bias + residual_scale * residual. They are rounded when they are
// taken, so the residual comes before: it is staged where results will be.
#pragma once

#include "kernels/hopper/narrow_epilogue.cuh"
#include "kernels/hopper/tile_residual.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

static_assert(has_residual && !has_activation && !plan::out_along_m);

// A tile leaves registers for the first columns of its residual while it is multiplied.
constexpr bool has_registers = plan::tile_n <= 128;

class Delivery : public NarrowEpilogue<TileEpilogue> {
  using Residual = ResidualRows<Output, Storer::Chunk, plan::residual_vector, has_registers>;

  // The sums from a column on: the residual is staged a few columns at a time, and read while those before are added.
  template <int from = 0>
  __device__ __forceinline__ void begin(float (&sum)[elements], Residual& residual, unsigned lent) const {
    if constexpr (from < plan::tile_n) {
      constexpr int next = from + Residual::columns;
      static_assert(plan::tile_n % Residual::columns == 0);
      const int line = storer.first_m_of_warp();
      residual.stage(lent, line);
      __syncwarp();
      if constexpr (next < plan::tile_n)
        residual.read(next);
      epilogue_.begin<from, Residual::columns>(
          sum, [&](int j, int h) { return Residual::pair(lent, line, j - from / 8, h); });
      __syncwarp();
      begin<next>(sum, residual, lent);
    }
  }

  // Between two tiles, what a chunk is staged in can be used for something else, each warp's rows by itself.
  __device__ __forceinline__ unsigned lent_chunk() const {
    storer.drain();
    storer.sync();
    return ptx::forgotten(storer.chunk(0));
  }

 public:
  template <typename Shared>
  __device__ __forceinline__ Delivery(const Parameters& p, Shared& shared, Share share, int consumer)
      : NarrowEpilogue(p, shared, share, consumer) {}

  struct Ahead {
    TileBias bias;
    Residual residual;
  };
  // Starts to read the bias and the residual of a tile; or has L2 read it, if there are no registers yet.
  __device__ __forceinline__ Ahead read_ahead(const Work& work) const {
    TileBias bias;
    read_bias(bias, work);
    Residual residual = residual_of<Residual>(work);
    residual.prefetch<plan::tile_n>();
    if constexpr (has_registers)
      residual.read(0);
    return {bias, residual};
  }
  // The sums of the tile are nearly complete, and there are.
  __device__ __forceinline__ void read_late(Ahead& ahead, const Work& work) const {
    if constexpr (!has_registers) {
      ahead.residual = residual_of<Residual>(work);
      ahead.residual.read(0);
    }
  }

  // The sums of a tile are complete.
  __device__ __forceinline__ void take(Results& results, float (&sum)[elements], const Work& work, Ahead& ahead) {
    prepare(work, ahead.bias);
    begin(sum, ahead.residual, lent_chunk());
    results.take(sum);
  }
};

}  // namespace tilesmith
