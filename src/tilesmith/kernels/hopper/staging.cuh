// Where a consumer's results pass through shared memory on their way to the output, in chunks of a few columns; and
// where in the output they go.
#pragma once

#include "batch.cuh"
#include "kernels/hopper/common.cuh"
#include "ptx/barrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "staged_chunk.cuh"

namespace tilesmith {

constexpr int chunks = plan::tile_n / plan::chunk;

// Where a consumer's part of a tile goes.
struct Destination {
  BatchIndex batch;  // for TMA
  Output* matrix;    // for the threads
  int first_m, first_n;
};

// What all Storers have: the output, and the buffers of a consumer, or of each of its warps, that take turns. `front`:
// bytes before the first of them. Before another there is the gap after the last line of the one in front of it.
template <bool padded, int front = 0>
class Staging {
 protected:
  const ptx::TensorMap& map_;
  const plan::OutputLines lines_;

 private:
  const unsigned buffers_;
  const int barrier_;

 protected:
  const int warp_ = threadIdx.x % warpgroup_threads / 32;
  const int lane_ = threadIdx.x % 32;

 public:
  using Chunk = StagedChunk<Output, plan::chunk, plan::out_along_m, plan::out_by_warp, padded>;
  static constexpr int shared_bytes = front + (plan::out_by_warp ? 4 : 1) * plan::store_buffers * Chunk::bytes;

  // `staging`: shared_bytes of this consumer's own. `barrier`: a named barrier of its own.
  __device__ __forceinline__ Staging(const ptx::TensorMap& map, const plan::OutputLines& lines,
                                     const unsigned char* staging, int barrier)
      : map_(map),
        lines_(lines),
        buffers_(ptx::shared_address(staging) + front +
                 (plan::out_by_warp ? threadIdx.x % warpgroup_threads / 32 * plan::store_buffers * Chunk::bytes : 0)),
        barrier_(barrier) {}

  __device__ __forceinline__ unsigned chunk(int which) const {
    return buffers_ + which % plan::store_buffers * Chunk::bytes;
  }

  __device__ __forceinline__ int lane() const { return lane_; }

  // A warp's first row in a chunk.
  __device__ __forceinline__ int first_m_of_warp() const { return Chunk::first_row(warp_); }
  // The first row of a staged chunk in the consumer's part of a tile, and its first column.
  __device__ __forceinline__ int first_m() const { return plan::out_by_warp ? warp_ * 16 : 0; }
  __device__ __forceinline__ int first_n(int which) const { return which * plan::chunk; }

  // Waits for those who stage together.
  __device__ __forceinline__ void sync() const {
    if constexpr (plan::out_by_warp)
      __syncwarp();
    else
      ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }
};

}  // namespace tilesmith
