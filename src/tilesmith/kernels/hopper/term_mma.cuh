// The products of a tile of operands that are sums of terms: one consumer's loop over the stages of the ring.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/wgmma.cuh"
#include "tile.cuh"

namespace tilesmith {

// Two consumers that start their products in turn, whole steps at a time. Then one adds or stores its sums while the
// products of the other run; otherwise both would do the same at the same time.
template <int consumers, int first_barrier>
class Turns {
  const int consumer_;

 public:
  __device__ __forceinline__ Turns(int consumer) : consumer_(consumer) {
    if (consumer == 1)
      hand_over();
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (consumers == 2)
      ptx::named_barrier_sync(first_barrier + consumer_, 2 * warpgroup_threads);
  }
  __device__ __forceinline__ void hand_over() const {
    if constexpr (consumers == 2)
      ptx::named_barrier_arrive(first_barrier + 1 - consumer_, 2 * warpgroup_threads);
  }
};

// The products of operands that are sums of terms, the largest first: A = A0 + A1 + .., B likewise. A step along K
// takes `terms` stages of the ring. The p-th of them holds the p-th term of B, and of A the p-th from the end; their
// product is one of the smallest that count. Sums of small products come first, since tensor cores cut off what is
// small next to what they have already. Where one operand is a single term, that is in the first stage alone, and the
// terms of the other one come from the end.
//
// Tensor cores add with truncation, so their sum is of one step only. Its user adds it to one that rounds.
//
// `stationary_b`: all steps use the same terms of B, which are not in the ring. `with_least_product`: of two terms, the
// product of the second ones counts too.
template <typename ATile, typename BTile, typename Ring, int elements, int a_terms, int b_terms, bool stationary_b,
          bool with_least_product>
class TermProducts {
  static constexpr int terms = a_terms > b_terms ? a_terms : b_terms;
  static_assert(a_terms == b_terms || a_terms == 1 || b_terms == 1);

  Ring& ring_;
  const unsigned char* const a_;  // this consumer's rows in the first stage
  const unsigned char* const b_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  typename Ring::Position at_, under_way_[terms];

  __device__ __forceinline__ void multiply(int a_stage, int b_stage, int step, bool accumulate) {
    const auto a = ATile::descriptor(a_ + a_stage * ATile::bytes);
    const auto b = BTile::descriptor(b_ + b_stage * BTile::bytes);
    ptx::wgmma(sum, ptx::descriptor_advance(a, step * ATile::step_bytes),
               ptx::descriptor_advance(b, step * BTile::step_bytes), accumulate);
  }
  __device__ __forceinline__ void multiply(int a_stage, int b_stage, bool accumulate) {
#pragma unroll
    for (int step = 0; step < tile_k / wgmma_k; ++step) multiply(a_stage, b_stage, step, accumulate || step > 0);
  }

  // Waits for the stage of the next term.
  __device__ __forceinline__ void wait(int term) {
    ring_.wait_full(at_);
    under_way_[term] = at_;
    at_.advance();
  }

  __device__ __forceinline__ int stage_of_a(int term) const { return under_way_[a_terms == 1 ? 0 : term].stage; }
  __device__ __forceinline__ int stage_of_b(int term) const {
    const int own = b_terms == 1 ? 0 : term;
    return stationary_b ? own : under_way_[own].stage;
  }

  // The products of one term with another that come after those of the p-th with the p-th from the end.
  template <typename Multiply>
  __device__ __forceinline__ void larger_products(Multiply multiply) const {
    if constexpr (terms == 2 && with_least_product)
      multiply(under_way_[0].stage, stage_of_b(1));
    constexpr int orders = a_terms == b_terms ? terms - 1 : 0;
#pragma unroll
    for (int order = orders - 1; order >= 0; --order)
#pragma unroll
      for (int a_term = order; a_term >= 0; --a_term)
        multiply(under_way_[terms - 1 - a_term].stage, stage_of_b(order - a_term));
  }

  __device__ __forceinline__ void release() {
#pragma unroll
    for (int p = 0; p < terms; ++p) ring_.release(under_way_[p], thread_);
  }

 public:
  float sum[elements];

  __device__ __forceinline__ TermProducts(Ring& ring, const unsigned char* a_stages, const unsigned char* b_stages,
                                          int consumer)
      : ring_(ring), a_(a_stages + consumer * ATile::group_bytes), b_(b_stages) {}

  // Starts the products of the next step.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int p = 0; p < terms; ++p) {
      wait(p);
      ptx::wgmma_fence();
      multiply(stage_of_a(p), stage_of_b(p), p > 0);
    }
    larger_products([&](int a_stage, int b_stage) { multiply(a_stage, b_stage, true); });
    ptx::wgmma_commit();
  }

  // Waits for them: then their sum is there.
  __device__ __forceinline__ void finish() {
    ptx::wgmma_wait<0>();
    release();
  }

  // The products of the next step in short sums, which lose least: hands each to `take`.
  template <typename Take>
  __device__ __forceinline__ void step_in_short_sums(Take take) {
#pragma unroll
    for (int p = 0; p < terms; ++p) wait(p);
    for (int step = 0; step < tile_k / wgmma_k; ++step) {
      ptx::wgmma_fence();
#pragma unroll
      for (int p = 0; p < terms; ++p) multiply(stage_of_a(p), stage_of_b(p), step, p > 0);
      larger_products([&](int a_stage, int b_stage) { multiply(a_stage, b_stage, step, true); });
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      take(sum);
    }
    release();
  }

  // One product of one stage, added to the sum, and done when this returns.
  __device__ __forceinline__ void add_single(bool accumulate) {
    wait(0);
    ptx::wgmma_fence();
    multiply(under_way_[0].stage, under_way_[0].stage, accumulate);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ring_.release(under_way_[0], thread_);
  }
};

}  // namespace tilesmith
