// The consumers of operands that are single planes.
#pragma once

#include "kernels/sm90/departure.cuh"
#include "kernels/sm90/types.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// The steps of a tile along K after the first, and after each of these a part of the results that wait.
template <int chunk = 0, typename Results>
__device__ __forceinline__ void multiply_and_store(Products& products, int k, int k_steps,
                                                   const Departure<Results>& departure, const Results& waiting,
                                                   bool is_waiting) {
  if constexpr (chunk < chunks) {
    if (is_waiting)
      departure.template stage<chunk>(waiting);
    if constexpr (Departure<Results>::finishes_staged) {
#pragma unroll 1
      for (int turn = 0; turn < ResultStorer::turns; ++turn) {
        if (is_waiting)
          departure.finish(chunk, turn);
        if (k++ < k_steps)
          products.next();
      }
      if (is_waiting)
        departure.end_finish();
    }
    for (int part = 0; part < ResultStorer::parts; ++part) {
      if (is_waiting)
        departure.send(chunk, part);
      if (k++ < k_steps)
        products.next();
    }
    multiply_and_store<chunk + 1>(products, k, k_steps, departure, waiting, is_waiting);
  } else {
    for (; k < k_steps; ++k) products.next();
  }
}

// A consumer's tiles, if its operands are single planes.
template <typename Results>
__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  Departure<Results> departure(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    products.first();
    const Schedule::Work work = tiles.work();
    const TileFacts facts = departure.facts(work);
    auto residual = departure.residual(work);
    if constexpr (plan::store_waits) {
      multiply_and_store(products, 1, work.k_steps, departure, results, is_waiting);
    } else {
      for (int k = 1; k < work.k_steps; ++k) products.next();
    }
    departure.read(residual, work);
    products.finish();
    departure.prepare(work, facts);
    departure.take(results, products.sum, residual);
    if constexpr (plan::store_waits)
      is_waiting = true;
    else
      departure.store(results);
  }
  if (is_waiting)
    departure.store(results);
  departure.finish();
}

}  // namespace tilesmith
