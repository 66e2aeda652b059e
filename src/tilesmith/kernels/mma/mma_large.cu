// C = A B of 16 bits in large tiles, by the products that a warp of the tensor cores has in its registers; sums are
// float32.
//
// A block computes a tile of C. Tiles of A and B pass through a ring in shared memory, and each warp has a part of 64 x
// 64 of the block's tile: then the tensor cores wait neither for shared memory nor for L2. A warp reads 16 of K at a
// time by ldmatrix, while it multiplies the 16 before, also where the next tile of the ring begins.
//
// Where tiles are few, K is cut into parts, as mma.cu does it, for small products and all that is not aligned.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "batch.cuh"
#include "kernels/mma/finish.cuh"
#include "kernels/mma/matrix_fragments.cuh"
#include "kernels/mma/ring.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

constexpr int steps = plan::tile_k / plan::mma_k;  // of a tile
static_assert(plan::by_matrices && plan::warps_k == 1 && (steps == 2 || steps == 4));

// The ring's tiles, and what a warp has of the one that it multiplies.
class Multiplication {
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
    multiply_add(sum, a_step_[which], b_step_[which]);
  }

 public:
  Sum sum[mmas_m][mmas_n][4] = {};

  __device__ __forceinline__ Multiplication(const TileOfA& a, const TileOfB& b, unsigned ring, int k)
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

  __device__ __forceinline__ int k_left() const { return k_left_; }

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
};

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma_large(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  ptx::grid_launch_dependents();

  const int first_k = blockIdx.z * p.part_k, k = min(p.k - first_k, p.part_k);
  const Element* a = p.a + first_k * p.a_stride_k;
  const Element* b = p.b + first_k * p.b_stride_k;
  const BlockTile tile = BlockTile::own(p);
  if (tile.matrix > 0) {
    const BatchIndex index = BatchIndex::of(tile.matrix, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      a += index.at[d] * p.a_batch_strides[d];
      b += index.at[d] * p.b_batch_strides[d];
    }
  }
  const TileOfA a_tile(a, tile.first_m, p.m, p.a_stride_m, p.a_stride_k);
  const TileOfB b_tile(b, tile.first_n, p.n, p.b_stride_n, p.b_stride_k);

  ptx::grid_dependency_wait();
  Multiplication product(a_tile, b_tile, ptx::shared_address(shared_bytes), k);
  if (p.copies_are_whole)
#pragma unroll 1
    while (product.k_left() >= (plan::stages + 1) * plan::tile_k) product.multiply_tile<true>();
#pragma unroll 1
  while (product.k_left() > 0) product.multiply_tile<false>();

  finish(p, tile, shared_bytes, product.sum);
}

}  // namespace tilesmith
