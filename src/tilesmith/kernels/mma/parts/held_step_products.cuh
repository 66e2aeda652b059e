// The products of a block's tiles of 16-bit operands on a GPU whose copies pass through registers. The ring has two
// tiles; while a warp multiplies one of them, it stores the next one, and registers hold the one after that on its way
// from memory.
//
// A warp reads 16 of K at a time by ldmatrix, while it multiplies the 16 before. Registers are scarce: what it reads
// takes the place of what it has just multiplied.
#pragma once

#include "kernels/mma/matrix_fragments.cuh"
#include "kernels/mma/ring.cuh"

namespace tilesmith {

constexpr int steps = plan::tile_k / plan::mma_k;  // of a tile
static_assert(plan::by_matrices && plan::holds_copies && plan::warps_k == 1 && plan::stages == 2 && steps == 2);

// The ring's tiles, and what a warp has of the one that it multiplies.
class StepProducts {
  TileOfA a_;
  TileOfB b_;
  const unsigned addresses_;            // of both tiles, added
  const unsigned own_a_, own_b_;        // where in a tile this lane's matrices begin
  const unsigned a_copies_, b_copies_;  // where this thread's copies do
  unsigned at_;                         // the address of the tile that is multiplied
  int k_left_;                          // with that tile
  FragmentOfA a_step_;
  FragmentOfB b_step_;

  __device__ __forceinline__ unsigned other() const { return addresses_ - at_; }

  // `are_whole`: the tile is, along K, and so are all copies.
  template <bool are_whole>
  __device__ __forceinline__ void hold(int k_left) {
    if constexpr (are_whole) {
      a_.hold_whole();
      b_.hold_whole();
    } else if (k_left > 0) {
      a_.hold(k_left);
      b_.hold(k_left);
    }
  }
  __device__ __forceinline__ void put(unsigned stage) const {
    a_.put_vectors(stage, a_copies_);
    b_.put_vectors(stage + sizeof(RingStage::a), b_copies_);
  }

  // Multiplies what has been read, from a pair of groups of columns on, and reads the step at k of a tile, if there is
  // one: of B when a pair has been multiplied, of A with the last pair.
  template <int k, int j = 0>
  __device__ __forceinline__ void multiply_and_read(unsigned tile, bool reads) {
    if constexpr (j < mmas_n) {
      multiply_rows<k, j>(tile, reads);
      if (reads)
        b_step_.read_pair<k, j>(tile + sizeof(RingStage::a), own_b_);
      multiply_and_read<k, j + 2>(tile, reads);
    }
  }
  template <int k, int j, int i = 0>
  __device__ __forceinline__ void multiply_rows(unsigned tile, bool reads) {
    if constexpr (i < mmas_m) {
      Own::multiply_add(total[i][j], a_step_[i], b_step_[j]);
      Own::multiply_add(total[i][j + 1], a_step_[i], b_step_[j + 1]);
      if (reads && j + 2 == mmas_n)
        a_step_.read_one<k, i>(tile, own_a_);
      multiply_rows<k, j, i + 1>(tile, reads);
    }
  }

  // Multiplies a tile, stores the next one, and has registers hold the one after that. `are_whole`: there are both, and
  // the copies of the latter are whole.
  template <bool are_whole>
  __device__ __forceinline__ void multiply_tile() {
    const bool has_next = are_whole || k_left_ > plan::tile_k;
    multiply_and_read<plan::mma_k>(at_, true);
    // The compiler does not know that there is one, and leaves products on this side of the branch: the tensor cores
    // have work while threads wait for memory and for each other.
    if (static_cast<int>(ptx::forgotten(k_left_)) > plan::tile_k)
      put(other());
    __syncthreads();  // all threads have stored the next tile, and all have read this one
    at_ = other();
    k_left_ -= plan::tile_k;
    hold<are_whole>(k_left_ - plan::tile_k);
    multiply_and_read<0>(at_, has_next);
  }

 public:
  Sums total = {};

  __device__ __forceinline__ StepProducts(const TileOfA& a, const TileOfB& b, unsigned ring, int k)
      : a_(a),
        b_(b),
        addresses_(2 * ring + sizeof(RingStage)),
        own_a_(FragmentOfA::own_place()),
        own_b_(FragmentOfB::own_place()),
        a_copies_(TileOfA::first_place()),
        b_copies_(TileOfB::first_place()),
        at_(ring),
        k_left_(k) {
    hold<false>(k);
    put(ring);
    hold<false>(k - plan::tile_k);
    __syncthreads();
    a_step_.read<0>(at_, own_a_);
    b_step_.read<0>(at_ + sizeof(RingStage::a), own_b_);
  }

  // `copies_are_whole`: of tiles that are, along K.
  __device__ __forceinline__ void run(bool copies_are_whole) {
    if (copies_are_whole)
#pragma unroll 1
      while (k_left_ >= 3 * plan::tile_k) multiply_tile<true>();
#pragma unroll 1
    while (k_left_ > 0) multiply_tile<false>();
  }
};

}  // namespace tilesmith
