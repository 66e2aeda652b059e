// The products of a block's tiles of operands that are sums of terms, A = A0 + A1 + .., B likewise, the largest first.
//
// The tensor cores cut off what does not fit, so their sums are short, small products come first in them, and they are
// promoted to a total of float32, where they are rounded: those of two terms after a stage or two, of three after a
// step.
#pragma once

#include "kernels/mma/block_tile.cuh"
#include "kernels/mma/matrix_fragments.cuh"

namespace tilesmith {

// multiply_add for sums that begin with these products.
__device__ __forceinline__ void multiply(Sums& sum, const FragmentOfA& a, const FragmentOfB& b) {
#pragma unroll
  for (int j = 0; j < mmas_n; ++j)
#pragma unroll
    for (int i = 0; i < mmas_m; ++i) Own::multiply(sum[i][j], a[i], b[j]);
}

struct TermStage {
  Element a[plan::terms][TileOfA::elements];
  Element b[plan::terms][TileOfB::elements];
};
static_assert(plan::stages * sizeof(TermStage) == plan::shared_bytes);
static_assert(plan::by_matrices && plan::warps_k == 1 && plan::tile_k == 2 * plan::mma_k);

class Products {
  static constexpr int terms = plan::terms;
  static constexpr bool promotes_stages = plan::sum_k == plan::tile_k;  // and not two together
  static_assert(terms == 2 ? promotes_stages || plan::sum_k == 2 * plan::tile_k : plan::sum_k == plan::mma_k);

  TileOfA a_;
  TileOfB b_;
  const long long a_term_, b_term_;      // elements from one term to the next
  const unsigned ring_, own_a_, own_b_;  // the ring's address, and where in a tile this lane's matrices begin
  const unsigned a_copies_, b_copies_;   // where this thread's copies do
  unsigned at_;                          // the address of the stage that is multiplied
  int k_left_;                           // with that stage
  FragmentOfA first_a_;                  // of the stage, the last term of A
  FragmentOfB first_b_;                  // and the first one of B
  FragmentOfA a_terms_[2][terms];        // of two steps along K
  FragmentOfB b_terms_[2][terms];
  Sums sum_;

  __device__ __forceinline__ unsigned next(unsigned stage) const {
    return stage + sizeof(TermStage) == ring_ + plan::shared_bytes ? ring_ : stage + sizeof(TermStage);
  }

  __device__ __forceinline__ unsigned previous(unsigned stage) const {
    return (stage == ring_ ? ring_ + plan::shared_bytes : stage) - sizeof(TermStage);
  }

  // Starts the copies of the next tile.
  __device__ __forceinline__ void start(unsigned stage) {
#pragma unroll
    for (int term = 0; term < terms; ++term) {
      a_.start_whole(stage + term * sizeof(TermStage::a) / terms, a_copies_, term * a_term_);
      b_.start_whole(stage + sizeof(TermStage::a) + term * sizeof(TermStage::b) / terms, b_copies_, term * b_term_);
    }
    a_.advance();
    b_.advance();
  }

  template <int step, int term>
  __device__ __forceinline__ void read_a() {
    a_terms_[step][term].template read<step * plan::mma_k>(at_ + term * sizeof(TermStage::a) / terms, own_a_);
  }
  template <int step, int term>
  __device__ __forceinline__ void read_b() {
    b_terms_[step][term].template read<step * plan::mma_k>(
        at_ + sizeof(TermStage::a) + term * sizeof(TermStage::b) / terms, own_b_);
  }
  template <int step, int a_term, int b_term>
  __device__ __forceinline__ void add() {
    multiply_add(sum_, a_terms_[step][a_term], b_terms_[step][b_term]);
  }

  __device__ __forceinline__ void promote() {
#pragma unroll
    for (int i = 0; i < mmas_m; ++i)
#pragma unroll
      for (int j = 0; j < mmas_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) total[i][j][e] += sum_[i][j][e];
  }

  // Waits for the next stage, whose copies have been under way for a while.
  __device__ __forceinline__ void go_on() {
    ptx::copy_wait<plan::stages - 2>();
    __syncthreads();  // the copies of all threads are there, and all have read this stage
    at_ = next(at_);
    k_left_ -= plan::tile_k;
  }

  // What is read first of a stage is read before the last products of the one before it; but if those are promoted,
  // which leaves no registers for that.
  __device__ __forceinline__ void read_first() {
    first_a_.template read<0>(at_ + (terms - 1) * sizeof(TermStage::a) / terms, own_a_);
    first_b_.template read<0>(at_ + sizeof(TermStage::a), own_b_);
  }

  // Two steps of two terms.
  template <bool begins, bool is_followed>
  __device__ __forceinline__ void multiply_two_terms() {
    if constexpr (promotes_stages) {
      read_a<0, 1>();
      read_b<0, 0>();
    } else {
      a_terms_[0][1] = first_a_;
      b_terms_[0][0] = first_b_;
    }
    if constexpr (begins || promotes_stages)
      multiply(sum_, a_terms_[0][1], b_terms_[0][0]);
    else
      add<0, 1, 0>();
    read_a<0, 0>();
    read_b<0, 1>();
    add<0, 0, 1>();
    read_a<1, 1>();
    read_b<1, 0>();
    add<1, 1, 0>();
    read_a<1, 0>();
    read_b<1, 1>();
    add<1, 0, 1>();
    if constexpr (plan::with_least_product) {
      add<0, 1, 1>();
      add<1, 1, 1>();
    }
    if constexpr (promotes_stages) {
      add<0, 0, 0>();
      add<1, 0, 0>();
      promote();
      go_on();
    } else {
      go_on();
      if (is_followed || k_left_ > 0)
        read_first();
      add<0, 0, 0>();
      add<1, 0, 0>();
      if constexpr (!begins)
        promote();
    }
  }

  // A step of three terms.
  template <int step>
  __device__ __forceinline__ void multiply_three_terms() {
    read_a<step, terms - 1>();
    read_b<step, 0>();
    multiply(sum_, a_terms_[step][terms - 1], b_terms_[step][0]);
    read_a<step, 1>();
    read_b<step, 1>();
    add<step, 1, 1>();
    read_a<step, 0>();
    read_b<step, terms - 1>();
    add<step, 0, terms - 1>();
    add<step, 1, 0>();
    add<step, 0, 1>();
    add<step, 0, 0>();
    promote();
  }

  // `begins`: a sum of two terms, if it takes two stages. `is_followed`: there are copies to start, into the stage
  // before this one, which all have read.
  template <bool begins, bool is_followed>
  __device__ __forceinline__ void multiply_stage() {
    if (is_followed || k_left_ > (plan::stages - 1) * plan::tile_k)
      start(previous(at_));
    ptx::copy_commit();
    if constexpr (terms == 2) {
      multiply_two_terms<begins, is_followed>();
    } else {
      multiply_three_terms<0>();
      multiply_three_terms<1>();
      go_on();
    }
  }

 public:
  Sums total;

  // Starts the first copies. `k`: a multiple of two stages'. `first`: what the total begins with.
  __device__ __forceinline__ Products(const Parameters& p, const Element* a, const Element* b, const BlockTile& tile,
                                      unsigned ring, int k, const Sums& first)
      : a_(a, tile.first_m, p.m, p.a_stride_m, p.a_stride_k),
        b_(b, tile.first_n, p.n, p.b_stride_n, p.b_stride_k),
        a_term_(p.term_depth * p.a_stride_k),
        b_term_(p.term_depth * p.b_stride_k),
        ring_(ring),
        own_a_(FragmentOfA::own_place()),
        own_b_(FragmentOfB::own_place()),
        a_copies_(TileOfA::first_place()),
        b_copies_(TileOfB::first_place()),
        at_(ring),
        k_left_(k) {
#pragma unroll
    for (int i = 0; i < sums; ++i) {
      const int m = i / (4 * mmas_n), n = i / 4 % mmas_n;
      total[m][n][i % 4] = first[m][n][i % 4];
    }
#pragma unroll 1
    for (int i = 0; i < plan::stages - 1; ++i) {
      if (k > i * plan::tile_k)
        start(ring_ + i * static_cast<int>(sizeof(TermStage)));
      ptx::copy_commit();
    }
  }

  // Adds all products to the total.
  __device__ __forceinline__ void run() {
    ptx::copy_wait<plan::stages - 2>();
    __syncthreads();
    if constexpr (terms == 2 && !promotes_stages)
      read_first();
#pragma unroll 1
    while (k_left_ > plan::stages * plan::tile_k) {
      multiply_stage<true, true>();
      multiply_stage<false, true>();
    }
#pragma unroll 1
    while (k_left_ > 0) {
      multiply_stage<true, false>();
      multiply_stage<false, false>();
    }
  }
};

// The infinities and NaNs of products, by the terms that tell them from other numbers; zeros for all others.
__device__ __forceinline__ void find_special(Sums& found, const Parameters& p, const Element* a, const Element* b,
                                             const BlockTile& tile, unsigned ring, int k) {
  TileOfA a_tile(a + plan::terms * p.term_depth * p.a_stride_k, tile.first_m, p.m, p.a_stride_m, p.a_stride_k);
  TileOfB b_tile(b + plan::terms * p.term_depth * p.b_stride_k, tile.first_n, p.n, p.b_stride_n, p.b_stride_k);
  const unsigned b_stage = ring + sizeof(TermStage::a);
  FragmentOfA of_a;
  FragmentOfB of_b;
#pragma unroll 1
  for (int first = 0; first < k; first += plan::tile_k) {
    a_tile.start_whole(ring, TileOfA::first_place());
    b_tile.start_whole(b_stage, TileOfB::first_place());
    a_tile.advance();
    b_tile.advance();
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncthreads();
    of_a.read<0>(ring, FragmentOfA::own_place());
    of_b.read<0>(b_stage, FragmentOfB::own_place());
    multiply_add(found, of_a, of_b);
    of_a.read<plan::mma_k>(ring, FragmentOfA::own_place());
    of_b.read<plan::mma_k>(b_stage, FragmentOfB::own_place());
    multiply_add(found, of_a, of_b);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < sums; ++i) {
    float& x = found[i / (4 * mmas_n)][i / 4 % mmas_n][i % 4];
    x = x - x == 0.0f ? 0.0f : x;
  }
}

}  // namespace tilesmith
