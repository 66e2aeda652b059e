// The products of a float32 A that consumers split themselves with terms of B: see TermProducts in term_mma.cuh,
// which finds both split. A stage of the ring has a step of A along K, and the same step of all terms of B.
#pragma once

#include "kernels/hopper/fp32_tile.cuh"
#include "kernels/hopper/rs_rows.cuh"
#include "ptx/wgmma.cuh"
#include "tile.cuh"

namespace tilesmith {

// `Rows`: ScaledRows or FullRangeRows. `parts_ahead`: of the four parts of a step, those that are split while the
// products of the step before run; as many as there are registers for.
template <typename ATile, typename BTile, typename Ring, typename Rows, int elements, int terms,
          bool with_least_product, int parts_ahead>
class RsProducts {
  static constexpr int parts = tile_k / wgmma_k;

 public:
  // The terms of a step of A.
  struct Step {
    TermFragment part[parts][terms];
  };

 private:
  Ring& ring_;
  const unsigned a_;  // this consumer's rows in the first stage
  const unsigned char* const b_;
  const int thread_ = threadIdx.x % warpgroup_threads;
  const typename ATile::Reader reader_;
  typename Ring::Position at_;     // of the products
  typename Ring::Position ahead_;  // of what is split next

  __device__ __forceinline__ unsigned long long b_descriptor(int term, int part) const {
    const auto tile = BTile::descriptor(b_ + (at_.stage * terms + term) * BTile::bytes);
    return ptx::descriptor_advance(tile, part * BTile::step_bytes);
  }

  template <int part>
  __device__ __forceinline__ Fp32Fragment read(typename Ring::Position from) const {
    return reader_.template read<part>(a_ + from.stage * ATile::bytes);
  }

  // Those of the p-th term of B with the p-th from the end of A.
  __device__ __forceinline__ void small_products(float (&to)[elements], const TermFragment (&a)[terms], int part,
                                                 bool accumulate) {
#pragma unroll
    for (int p = 0; p < terms; ++p) ptx::wgmma(to, a[terms - 1 - p], b_descriptor(p, part), accumulate || p > 0);
  }
  // Those that come after them.
  __device__ __forceinline__ void larger_products(float (&to)[elements], const TermFragment (&a)[terms], int part) {
    if constexpr (terms == 2 && with_least_product)
      ptx::wgmma(to, a[1], b_descriptor(1, part), true);
#pragma unroll
    for (int order = terms - 2; order >= 0; --order)
#pragma unroll
      for (int a_term = order; a_term >= 0; --a_term)
        ptx::wgmma(to, a[a_term], b_descriptor(order - a_term, part), true);
  }

  template <int part, int end>
  __device__ __forceinline__ void split(typename Ring::Position from, Step& step) {
    if constexpr (part < end) {
      rows.split(read<part>(from), step.part[part]);
      split<part + 1, end>(from, step);
    }
  }

  template <int count>
  static __device__ __forceinline__ void keep(const TermFragment (&a)[count]) {
#pragma unroll
    for (int p = 0; p < count; ++p)
#pragma unroll
      for (int i = 0; i < Fp32Fragment::registers; ++i) ptx::keep_until_here(a[p][i]);
  }

  // The products of one part after the other, each in a sum of its own. While they run, the sum of the part before is
  // taken and the next one split: after the last part, the first one of the next step if there is one.
  template <int part = 0, typename Take>
  __device__ __forceinline__ void parts_in_short_sums(Take take, Step& step, TermFragment (&first)[terms], bool more,
                                                      float (&own)[elements], float (&before)[elements]) {
    ptx::wgmma_fence();
    small_products(own, step.part[part], part, false);
    larger_products(own, step.part[part], part);
    ptx::wgmma_commit();
    if constexpr (part > 0) {
      ptx::wgmma_wait<1>();
      keep(step.part[part - 1]);
      take(before);
    }
    if constexpr (part + 1 < parts) {
      rows.split(read<part + 1>(at_), step.part[part + 1]);
      parts_in_short_sums<part + 1>(take, step, first, more, before, own);
    } else {
      ahead_.advance();
      if (more)
        split_first(first);
      ptx::wgmma_wait<0>();
      keep(step.part[part]);
      take(own);
    }
  }

  template <int part = 0>
  __device__ __forceinline__ void add_kinds_of_parts(bool accumulate) {
    if constexpr (part < parts) {
      TermFragment a[1];
      rows.kinds(read<part>(at_), a[0]);
      ptx::wgmma_fence();
      ptx::wgmma(sum, a[0], b_descriptor(0, part), accumulate || part > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      keep(a);
      add_kinds_of_parts<part + 1>(accumulate);
    }
  }

 public:
  Rows rows;
  float sum[elements];

  __device__ __forceinline__ RsProducts(Ring& ring, const unsigned char* a_stages, const unsigned char* b_stages,
                                        int consumer)
      : ring_(ring),
        a_(ptx::shared_address(a_stages) + consumer * ATile::group_bytes),
        b_(b_stages),
        reader_(threadIdx.x % warpgroup_threads) {}

  // Splits the first parts of the next step. The products of the one before may be under way.
  __device__ __forceinline__ Step split_ahead() {
    ring_.wait_full(ahead_);
    Step next;
    split<0, parts_ahead>(ahead_, next);
    ahead_.advance();
    return next;
  }

  // Starts the products of a step, and splits the rest of it while the first of them run.
  __device__ __forceinline__ void start(Step& step) {
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < parts_ahead; ++part) small_products(sum, step.part[part], part, part > 0);
    if constexpr (parts_ahead < parts) {
      split<parts_ahead, parts>(at_, step);
      ptx::wgmma_fence();
#pragma unroll
      for (int part = parts_ahead; part < parts; ++part) small_products(sum, step.part[part], part, true);
    }
#pragma unroll
    for (int part = 0; part < parts; ++part) larger_products(sum, step.part[part], part);
    ptx::wgmma_commit();
  }

  // Waits for the products of this step: then their sum is there.
  __device__ __forceinline__ void finish(const Step& step) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < parts; ++part) keep(step.part[part]);
    release();
  }

  // Splits the first part of the step that is next.
  __device__ __forceinline__ void split_first(TermFragment (&first)[terms]) {
    ring_.wait_full(ahead_);
    rows.split(read<0>(ahead_), first);
  }

  // The products of the next step in short sums, which lose least: hands each to `take`. `first` is its first part, and
  // then that of the step after it, if there is one.
  template <typename Take>
  __device__ __forceinline__ void step_in_short_sums(Take take, TermFragment (&first)[terms], bool more) {
    Step step;
#pragma unroll
    for (int p = 0; p < terms; ++p)
#pragma unroll
      for (int i = 0; i < Fp32Fragment::registers; ++i) step.part[0][p][i] = first[p][i];
    float other[elements];
    parts_in_short_sums(take, step, first, more, sum, other);
    release();
  }

  // The products of the kinds of the next step, which are the first term of B, added to the sum.
  __device__ __forceinline__ void add_kinds(bool accumulate) {
    ring_.wait_full(at_);
    add_kinds_of_parts(accumulate);
    ahead_.advance();
    release();
  }

 private:
  __device__ __forceinline__ void release() {
    ring_.release(at_, thread_);
    at_.advance();
  }
};

}  // namespace tilesmith
