// The consumers of a float32 A that they split themselves, and of a B that is a sum of terms: see rs_mma.cuh.
#pragma once

#include "batch.cuh"
#include "kernels/fp32_split/range_check.cuh"
#include "kernels/hopper/common.cuh"
#include "kernels/hopper/rs_rows.cuh"
#include "kernels/hopper/scales.cuh"
#include "ptx/barrier.cuh"
#include "ptx/global.cuh"
#include "scheduler.cuh"

namespace tilesmith {

constexpr int group = 16;  // rows of a warp

__device__ __forceinline__ int first_of_group(const Work& work, Share share, int consumer) {
  return share.first_m(work.tile) + consumer * wgmma_m + threadIdx.x % warpgroup_threads / 32 * group;
}

// Leaves to the launches that follow what the product has counted of its rows of A.
__device__ __forceinline__ void keep_range_stats(const Parameters& p, const Work& work, Share share, int consumer,
                                                 ScaledRows<plan::terms>& rows) {
  const int first = first_of_group(work, share, consumer);
  if (first >= p.m)
    return;
  const BatchIndex batch = BatchIndex::of<plan::batch_dims>(work.batch, p.batch_size);
  int* const exponents = p.split_exponents + static_cast<long long>(work.k_part) * p.split_pitch +
                         (scales_of(p.a_scales, batch) - p.a_scales.first) + first;
  const RangeStats range_stats = rows.finish(p.m - first, p.depth, p.schedule.split_k == 1,
                                             [&](int row, int exponent) { exponents[row] = exponent; });
  const int groups = (p.m + group - 1) / group;
  if (threadIdx.x % 32 == 0)
    p.a_range_stats[(work.batch * groups + first / group) * p.schedule.split_k + work.k_part] = range_stats;
}

// Where the last block adds up what all have counted: it has no more tiles to load, nor a neighbour that would.
struct CountsOfAll {
  PartCounts<warpgroup_threads> a, b;
  bool is_last;
};

// Finds the range check, in the block that comes last, once all consumers of it have stored.
template <typename Shared>
__device__ __forceinline__ void leave_range_check(const Parameters& p, Shared& shared) {
  constexpr int threads = consumers * warpgroup_threads, barrier = 1 + consumers;
  const int thread = threadIdx.x - warpgroup_threads;  // the producers' come first
  const auto sync = [] { ptx::named_barrier_sync(barrier, threads); };
  auto& counts = reinterpret_cast<CountsOfAll&>(shared.a);
  static_assert(sizeof(counts) <= sizeof(shared.a));
  auto& check = *reinterpret_cast<CountedCheck*>(p.range_check);
  sync();
  if (thread == 0)
    counts.is_last = ptx::arrive(&check.arrived) == gridDim.x - 1;
  sync();
  if (!counts.is_last)
    return;
  const int parts = p.schedule.split_k;
  const RangeStats a =
      total_of_parts<threads>(counts.a, p.a_range_stats, p.a_range_stats_count * parts, parts, thread, sync);
  const RangeStats b =
      total_of_parts<threads>(counts.b, p.b_range_stats, p.b_range_stats_count, p.b_k_chunks, thread, sync);
  if (thread == 0)
    check.found = range_check(a, b, p.depth);
}

// A consumer's tiles, if they split A: see consume_terms. As a rule there is one, so nothing waits for the next one.
template <typename Products, typename Shared>
__device__ __forceinline__ void consume_rs(const Parameters& p, Shared& shared, Share share, int consumer) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = tiles.work();
    const auto ahead = delivery.read_ahead(work);
    products.rows.start(ahead.scales.rows, p.m - first_of_group(work, share, consumer));
    results.clear();
    // Two sets of terms take turns: no register is written that a product under way may read.
    auto even = products.split_ahead();
    for (int k = 1; k < work.k_steps; k += 2) {
      products.start(even);
      auto odd = products.split_ahead();
      products.finish(even);
      results.add(products.sum);
      products.start(odd);
      if (k + 1 < work.k_steps)
        even = products.split_ahead();
      products.finish(odd);
      results.add(products.sum);
    }
    if (work.k_steps % 2) {
      products.start(even);
      products.finish(even);
      results.add(products.sum);
    }
    if (work.tile.n == 0)  // the rows are the same in all columns of tiles
      keep_range_stats(p, work, share, consumer, products.rows);
    delivery.prepare(work, ahead);
    delivery.store(results);
  }
  leave_range_check(p, shared);
  delivery.storer.drain();
}

// The same for any values: see consume_full_range_terms.
template <typename Products, typename Shared>
__device__ __forceinline__ void consume_rs_full_range(const Parameters& p, Shared& shared, Share share, int consumer,
                                                      bool special) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = tiles.work();
    const auto ahead = delivery.read_ahead(work);
    products.rows.start(ahead.scales.rows);
    results.clear();
    if (special) {
      for (int k = 0; k < work.k_steps; ++k) products.add_kinds(k > 0);
      results.take_special(products.sum);
    }
    TermFragment first[plan::terms];
    products.split_first(first);
    for (int k = 1; k <= work.k_steps; ++k) {
      of_step.clear();
      products.step_in_short_sums([&](const float (&sum)[elements]) { of_step.add(sum); }, first, k < work.k_steps);
      results.add(of_step.values);
    }
    delivery.prepare(work, ahead);
    delivery.store(results);
  }
  delivery.storer.drain();
}

}  // namespace tilesmith
