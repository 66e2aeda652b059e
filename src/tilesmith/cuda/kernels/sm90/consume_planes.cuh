// The consumers of operands that are sums of planes: see mma.cuh.
#pragma once

#include "kernels/sm90/departure.cuh"
#include "kernels/sm90/types.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// A consumer's tiles. What one step along K adds up to is promoted to a sum that rounds. That sum waits until
// the first step of the next tile is under way, and is stored meanwhile.
template <typename Results>
__device__ __forceinline__ void consume_planes(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, share, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = shared.without_zeros(tiles.work());
    const TileFacts facts = departure.facts(work);
    products.start();
    if (is_waiting)
      departure.store(results);
    products.finish();
    results.take(products.sum);
    for (int k = 1; k < work.k_steps; ++k) {
      products.start();
      products.finish();
      results.add(products.sum);
    }
    departure.prepare(work, facts);
    is_waiting = true;
  }
  if (is_waiting)
    departure.store(results);
  departure.finish();
}

// The same where K is one step and the tile is wide: its sum needs no other, and there is none to wait in.
template <typename Results>
__device__ __forceinline__ void consume_single_steps(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, share, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  const ConsumerTurns turns(consumer);
  Results results;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    turns.wait();
    products.start();
    turns.hand_over();
    const Schedule::Work work = tiles.work();
    departure.prepare(work, departure.facts(work));
    products.finish();
    results.take(products.sum);
    departure.store(results);
  }
  departure.finish();
}

// The same for any values: of infinities and NaNs there are planes of their own, and products that say no more than
// where in the output they get.
template <typename Results>
__device__ __forceinline__ void consume_wide_planes(const Parameters& p, Shared& shared, Share share, int consumer,
                                                    bool special) {
  Departure<Results> departure(p, shared, share, consumer);
  PromotedProducts products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    results.clear();
    if (special) {
      for (int k = 0; k < work.k_steps; ++k) products.add_single(k > 0);
      results.take_special(products.sum);
    }
    for (int k = 0; k < work.k_steps; ++k) {
      of_step.clear();
      products.step_in_short_sums([&](const float (&sum)[elements]) { of_step.add(sum); });
      results.add(of_step.values);
    }
    departure.prepare(work, departure.facts(work));
    departure.store(results);
  }
  departure.finish();
}

}  // namespace tilesmith
