// Results leave shared memory by TMA, which writes boxes as far as they are inside the output. Its lines start at
// multiples of 16 bytes.
#pragma once

#include "kernels/hopper/staging.cuh"
#include "tile.cuh"

namespace tilesmith {

static_assert(plan::out_store == Store::boxes && !plan::out_by_warp);

class Storer : public Staging<false> {
  // Stores since the one from the same buffer. That one was of the tile before for the first chunks of a tile.
  template <int which>
  static constexpr int stores_since =
      which >= plan::store_buffers ? plan::store_buffers - 1 : which + (chunks - 1 - which) % plan::store_buffers;

  __device__ __forceinline__ bool issues() const { return lane_ == 0 && warp_ == 0; }

 public:
  static constexpr int parts = 1;  // that a chunk is sent in

  using Staging::Staging;

  template <int which>
  __device__ __forceinline__ void stage(const Results& results) const {
    if (issues())  // what was in the buffer must have left it
      ptx::tma_store_wait_read<stores_since<which>>();
    sync();
    results.write<Chunk, which * plan::chunk>(chunk(which), warp_, lane_);
    publish();
  }

  // What is staged has been written, or changed.
  __device__ __forceinline__ void publish() const {
    ptx::async_proxy_fence();
    sync();
  }

  __device__ __forceinline__ void send(int which, int, const Destination& to) const {
    const int m = to.first_m + first_m(), n = to.first_n + first_n(which);
    const int line = plan::out_along_m ? n : m, in_line = plan::out_along_m ? m : n;
    if (issues()) {
#pragma unroll
      for (int box = 0; box < Chunk::boxes; ++box)
        ptx::tma_store(map_, coordinates<2 + plan::out_batch_dims>(in_line + box * Chunk::line, line, to.batch),
                       chunk(which) + box * Chunk::box_bytes);
      ptx::tma_store_commit();
    }
  }

  // Both, of a whole chunk.
  template <int which>
  __device__ __forceinline__ void store(const Results& results, const Destination& to) const {
    stage<which>(results);
    send(which, 0, to);
  }

  // Before the block ends, or what chunks are staged in is used for something else.
  __device__ __forceinline__ void drain() const {
    if (issues())
      ptx::tma_store_wait_read<0>();
  }
};

}  // namespace tilesmith
