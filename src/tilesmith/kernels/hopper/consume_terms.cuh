// The consumers of operands that are sums of terms: see term_mma.cuh.
#pragma once

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/term_mma.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// A consumer's tiles. What one step along K adds up to is promoted to a sum that rounds. That sum waits until
// the first step of the next tile is under way, and is stored meanwhile.
template <typename Products, typename Shared>
__device__ __forceinline__ void consume_terms(const Parameters& p, Shared& shared, Share share, int consumer) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  bool is_known = false;  // that results count
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = shared.without_zeros(tiles.work(), p.schedule);
    const auto ahead = delivery.read_ahead(work);
    products.start();
    if (is_waiting)
      delivery.store(results);
    products.finish();
    results.take(products.sum);
    for (int k = 1; k < work.k_steps; ++k) {
      products.start();
      products.finish();
      results.add(products.sum);
    }
    if (!is_known && !shared.passes(p))
      break;
    is_known = true;
    delivery.prepare(work, ahead);
    is_waiting = true;
  }
  if (is_waiting)
    delivery.store(results);
  delivery.storer.drain();
}

// The same where K is one step and the tile is wide: its sum needs no other, and there is none to wait in.
template <typename Products, typename Shared>
__device__ __forceinline__ void consume_single_steps(const Parameters& p, Shared& shared, Share share, int consumer) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  const Turns<consumers, 1 + consumers> turns(consumer);
  Results results;
  bool is_known = false;  // that they count
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    turns.wait();
    products.start();
    turns.hand_over();
    const Work work = tiles.work();
    delivery.prepare(work, delivery.read_ahead(work));
    products.finish();
    if (!is_known && !shared.passes(p))
      break;
    is_known = true;
    results.take(products.sum);
    delivery.store(results);
  }
  delivery.storer.drain();
}

// The same for any values: of infinities and NaNs there are terms of their own, and products that say no more than
// where in the output they get.
template <typename Products, typename Shared>
__device__ __forceinline__ void consume_full_range_terms(const Parameters& p, Shared& shared, Share share, int consumer,
                                                         bool special) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results, of_step;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Work work = tiles.work();
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
    delivery.prepare(work, delivery.read_ahead(work));
    delivery.store(results);
  }
  delivery.storer.drain();
}

}  // namespace tilesmith
