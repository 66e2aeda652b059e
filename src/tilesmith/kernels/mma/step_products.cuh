// The products of a block's tiles of 16-bit operands, which pass through a ring in shared memory. A warp reads 16 of K
// at a time by ldmatrix, while it multiplies the 16 before, also where the next tile of the ring begins.
#pragma once

#include "kernels/mma/matrix_fragments.cuh"
#include "kernels/mma/ring.cuh"

namespace tilesmith {

constexpr int steps = plan::tile_k / plan::mma_k;  // of a tile
static_assert(plan::by_matrices && plan::warps_k == 1 && (steps == 2 || steps == 4));

// The ring's tiles, and what a warp has of the one that it multiplies.
class StepProducts {
  TileOfA a_;
  TileOfB b_;
  const unsigned ring_, own_a_, own_b_;  // the ring's address, and where in a tile this lane's matrices begin
  const unsigned a_copies_, b_copies_;   // where this thread's copies do
  unsigned at_;                          // the address of the tile that is multiplied
  int k_left_;                           // with that tile
  FragmentOfA a_step_[2];
  FragmentOfB b_step_[2];

  __device__ __forceinline__ unsigned next() const {
    return at_ + sizeof(RingStage) == ring_ + plan::shared_bytes ? ring_ : at_ + sizeof(RingStage);
  }

  template <int step>
  __device__ __forceinline__ void read() {
    a_step_[step % 2].template read<step * plan::mma_k>(at_, own_a_);
    b_step_[step % 2].template read<step * plan::mma_k>(at_ + sizeof(RingStage::a), own_b_);
  }
  template <int which>
  __device__ __forceinline__ void multiply_add_step() {
    multiply_add(total, a_step_[which], b_step_[which]);
  }

  // Starts copies into a stage of the ring. `are_whole`: the tile is, along K, and so are all copies.
  template <bool are_whole>
  __device__ __forceinline__ void start(unsigned stage, int k_left) {
    if constexpr (are_whole) {
      a_.start_whole(stage, a_copies_);
      b_.start_whole(stage + sizeof(RingStage::a), b_copies_);
      a_.advance();
      b_.advance();
    } else if (k_left > 0) {
      a_.start(stage, k_left);
      b_.start(stage + sizeof(RingStage::a), k_left);
    }
    ptx::copy_commit();
  }

  // Multiplies a tile, starts the copies of the one that takes its stage, and reads the first step of the next tile.
  // `starts_whole`: there are both, and the copies are whole.
  template <bool starts_whole>
  __device__ __forceinline__ void multiply_tile() {
    read<1>();
    multiply_add_step<0>();
    if constexpr (steps == 4) {
      read<2>();
      multiply_add_step<1>();
      read<steps - 1>();
      multiply_add_step<0>();
    }
    ptx::copy_wait<plan::stages - 2>();
    __syncthreads();  // the copies of all threads are there, and all have read this tile
    start<starts_whole>(at_, k_left_ - plan::stages * plan::tile_k);
    at_ = next();
    k_left_ -= plan::tile_k;
    if (starts_whole || k_left_ > 0)
      read<0>();
    multiply_add_step<1>();
  }

 public:
  Sums total = {};

  __device__ __forceinline__ StepProducts(const TileOfA& a, const TileOfB& b, unsigned ring, int k)
      : a_(a),
        b_(b),
        ring_(ring),
        own_a_(FragmentOfA::own_place()),
        own_b_(FragmentOfB::own_place()),
        a_copies_(TileOfA::first_place()),
        b_copies_(TileOfB::first_place()),
        at_(ring),
        k_left_(k) {
#pragma unroll 1
    for (int i = 0; i < plan::stages; ++i)
      start<false>(ring + i * static_cast<int>(sizeof(RingStage)), k - i * plan::tile_k);
    ptx::copy_wait<plan::stages - 1>();
    __syncthreads();
    read<0>();
  }

  // `copies_are_whole`: of tiles that are, along K.
  __device__ __forceinline__ void run(bool copies_are_whole) {
    if (copies_are_whole)
#pragma unroll 1
      while (k_left_ >= (plan::stages + 1) * plan::tile_k) multiply_tile<true>();
#pragma unroll 1
    while (k_left_ > 0) multiply_tile<false>();
  }
};

}  // namespace tilesmith
