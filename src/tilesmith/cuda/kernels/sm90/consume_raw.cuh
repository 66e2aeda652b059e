// The consumers of a float32 A that they split themselves, and of a B that is a sum of planes: see raw_mma.cuh.
#pragma once

#include "batch.cuh"
#include "census.cuh"
#include "kernels/sm90/departure.cuh"
#include "kernels/sm90/types.cuh"
#include "raw_rows.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// Leaves to the launches that follow what the product has counted of its rows of A.
__device__ __forceinline__ void keep_census(const Parameters& p, const Schedule::Work& work, Share share, int consumer,
                                            ScaledRows<plan::planes>& rows) {
  constexpr int group = 16;  // rows of a warp
  const int first = share.first_m(work.tile) + consumer * wgmma_m + threadIdx.x % warpgroup_threads / 32 * group;
  if (first >= p.m)
    return;
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  int* const exponents = p.split_exponents + static_cast<long long>(work.split) * p.split_pitch +
                         (p.a_scales.of(batch) - p.a_scales.first) + first;
  const Census census = rows.finish(p.m - first, p.depth, p.schedule.splits == 1,
                                    [&](int row, int exponent) { exponents[row] = exponent; });
  const int groups = (p.m + group - 1) / group;
  if (threadIdx.x % 32 == 0)
    p.a_censuses[(work.batch * groups + first / group) * p.schedule.splits + work.split] = census;
}

// A consumer's tiles, if A is raw: see consume_planes. As a rule there is one, so nothing waits for the next one. If it
// is clear from the start that planes do not suffice, it only counts: the wide scheme needs to know the rows of A.
template <typename Results>
__device__ __forceinline__ void consume_raw(const Parameters& p, Shared& shared, Share share, int consumer,
                                            bool only_counts) {
  Departure<Results> departure(p, shared, share, consumer);
  ProductsOfRows<ScaledRows<plan::planes>> products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    const bool counts = work.tile.n == 0;  // the rows are the same in all columns of tiles
    if (only_counts && !counts)
      continue;
    const TileFacts facts = departure.facts(work);
    products.rows.start(facts.scales.rows);
    if (only_counts) {
      for (int k = 0; k < work.k_steps; ++k) products.count();
    } else {
      results.clear();
      // Two sets of planes take turns: no register is written that a product under way may read.
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
    }
    if (counts)
      keep_census(p, work, share, consumer, products.rows);
    if (only_counts)
      continue;
    departure.prepare(work, facts);
    departure.store(results);
  }
  departure.finish();
}

// The same for any values: see consume_wide_planes.
template <typename Results>
__device__ __forceinline__ void consume_wide_raw(const Parameters& p, Shared& shared, Share share, int consumer,
                                                 bool special) {
  Departure<Results> departure(p, shared, share, consumer);
  ProductsOfRows<WideRows<plan::planes>> products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    const TileFacts facts = departure.facts(work);
    products.rows.start(facts.scales.rows);
    results.clear();
    if (special) {
      for (int k = 0; k < work.k_steps; ++k) products.add_kinds(k > 0);
      results.take_special(products.sum);
    }
    PlaneFragment first[plan::planes];
    products.split_first(first);
    for (int k = 1; k <= work.k_steps; ++k) {
      of_step.clear();
      products.step_in_short_sums([&](const float (&sum)[elements]) { of_step.add(sum); }, first, k < work.k_steps);
      results.add(of_step.values);
    }
    departure.prepare(work, facts);
    departure.store(results);
  }
  departure.finish();
}

}  // namespace tilesmith
