// The consumers of operands that the tensor cores sum over all of K.
#pragma once

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/mma.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// The steps of a tile along K after the first, and after each of these a part of the results that wait.
template <int chunk = 0, typename Products, typename Driver>
__device__ __forceinline__ void multiply_and_store(Products& products, int k, int k_steps, const Driver& driver,
                                                   const Results& waiting, bool is_waiting) {
  if constexpr (chunk < chunks) {
    if (is_waiting)
      driver.template stage<chunk>(waiting);
    if constexpr (Driver::changes_staged) {
#pragma unroll 1
      for (int turn = 0; turn < ResultStorer::turns; ++turn) {
        if (is_waiting)
          driver.change(chunk, turn);
        if (k++ < k_steps)
          products.next();
      }
      if (is_waiting)
        driver.end_changes();
    }
    for (int part = 0; part < ResultStorer::parts; ++part) {
      if (is_waiting)
        driver.send(chunk, part);
      if (k++ < k_steps)
        products.next();
    }
    multiply_and_store<chunk + 1>(products, k, k_steps, driver, waiting, is_waiting);
  } else {
    for (; k < k_steps; ++k) products.next();
  }
}

// A consumer's tiles.
template <typename Products, typename Driver, typename Shared>
__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  Driver driver(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    products.first();
    const Work work = tiles.work();
    const auto facts = driver.facts(work);
    auto residual = driver.residual(work);
    if constexpr (plan::store_waits) {
      multiply_and_store(products, 1, work.k_steps, driver, results, is_waiting);
    } else {
      for (int k = 1; k < work.k_steps; ++k) products.next();
    }
    driver.read(residual, work);
    products.finish();
    driver.prepare(work, facts);
    driver.take(results, products.sum, residual);
    if constexpr (plan::store_waits)
      is_waiting = true;
    else
      driver.store(results);
  }
  if (is_waiting)
    driver.store(results);
  driver.drain();
}

}  // namespace tilesmith
