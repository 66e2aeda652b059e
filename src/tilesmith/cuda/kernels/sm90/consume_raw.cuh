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
__device__ __forceinline__ void consume_raw(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, consumer);
  ProductsOfRows<ScaledRows<plan::planes>> products(shared.ring, shared.a[0], shared.b[0], consumer);
  const bool only_counts = needs_wide(total<plan::b_slabs>(p.b_censuses, p.b_census_count));
  Results results;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    const Scales scales = tile_scales(p, work, share, consumer);
    products.rows.start(scales.rows);
    if (only_counts) {
      for (int k = 1; k <= work.k_steps; ++k) {
        products.count();
        products.rows.end_step(k);
      }
    } else {
      results.clear();
      auto step = products.split_ahead();
      for (int k = 1; k < work.k_steps; ++k) {
        products.start(step);
        products.rows.end_step(k);
        const auto next = products.split_ahead();
        products.finish(step);
        results.add(products.sum);
        step = next;
      }
      products.start(step);
      products.finish(step);
      results.add(products.sum);
    }
    if (work.tile.n == 0)
      keep_census(p, work, share, consumer, products.rows);
    if (only_counts)
      continue;
    departure.prepare(destination(p, work, share, consumer), scales);
    departure.store(results);
  }
  departure.finish();
}

// The same for any values: see consume_wide_planes.
template <typename Results>
__device__ __forceinline__ void consume_wide_raw(const Parameters& p, Shared& shared, Share share, int consumer,
                                                 bool special) {
  Departure<Results> departure(p, shared, consumer);
  ProductsOfRows<WideRows<plan::planes>> products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    const Scales scales = tile_scales(p, work, share, consumer);
    products.rows.start(scales.rows);
    results.clear();
    if (special) {
      for (int k = 0; k < work.k_steps; ++k) products.add_kinds(k > 0);
      results.take_special(products.sum);
    }
    for (int k = 0; k < work.k_steps; ++k) {
      of_step.clear();
      products.step_in_short_sums([&](const float (&sum)[elements]) { of_step.add(sum); });
      results.add(of_step.values);
    }
    departure.prepare(destination(p, work, share, consumer), scales);
    departure.store(results);
  }
  departure.finish();
}

}  // namespace tilesmith
