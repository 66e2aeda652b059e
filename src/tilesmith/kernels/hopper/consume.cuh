// The consumers of operands that the tensor cores sum over all of K.
#pragma once

#include "kernels/hopper/common.cuh"
#include "kernels/hopper/mma.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// Stages a chunk of results, which are in registers: of those a compiler must know the number.
template <int from = 0, typename Driver>
__device__ __forceinline__ void stage(const Driver& driver, const Results& results, int chunk) {
  if constexpr (from < chunks) {
    if (chunk == from)
      driver.template stage<from>(results);
    else
      stage<from + 1>(driver, results, chunk);
  }
}

// Of a chunk: all, where the stores take all the time.
constexpr int parts_written_out = plan::only_stores ? ResultStorer::parts : 1;

// Stores results that wait in small steps, and calls `meanwhile` after each. These are loops, and not written out for
// each chunk: otherwise a kernel takes several times as long to compile.
template <typename Driver, typename Meanwhile>
__device__ __forceinline__ void store_in_steps(const Driver& driver, const Results& results, Meanwhile meanwhile) {
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    stage(driver, results, chunk);
    if constexpr (Driver::changes_staged) {
#pragma unroll 1
      for (int turn = 0; turn < ResultStorer::turns; ++turn) {
        driver.change(chunk, turn);
        meanwhile();
      }
      driver.end_changes();
    }
#pragma unroll parts_written_out
    for (int part = 0; part < ResultStorer::parts; ++part) {
      driver.send(chunk, part);
      meanwhile();
    }
  }
}

// The steps of a tile along K after the first one, in sums of so many steps at most: what the tensor cores cut off
// grows with a sum. All of them but the last are added up in `total`; returns whether there are any.
template <typename Products, typename Total>
__device__ __forceinline__ bool multiply_in_short_sums(Products& products, Total& total, int steps, int max_steps) {
  bool any = false;
  int in_sum = 1;
  total.clear();
  for (int k = 1; k < steps; ++k) {
    if (in_sum < max_steps) {
      products.next();
      ++in_sum;
    } else {
      products.finish();
      total.add(products.sum);
      any = true;
      products.first();
      in_sum = 1;
    }
  }
  return any;
}

// Adds them to the last one, which is complete.
template <typename Products, typename Total>
__device__ __forceinline__ void add_total(Products& products, const Total& total) {
  total.add_to(products.sum);
}

// A consumer's tiles.
template <typename Products, typename Driver, typename Shared>
__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  Driver driver(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  bool is_waiting = false;
  bool is_known = false;  // that results count
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    products.first();
    const Work work = tiles.work();
    const auto facts = driver.facts(work);
    auto residual = driver.residual(work);
    int k = 1;
    if constexpr (plan::store_waits)
      if (is_waiting)
        store_in_steps(driver, results, [&] {
          if (!plan::only_stores && k++ < work.k_steps)
            products.next();
        });
    bool has_total = false;
    if constexpr (plan::short_sums)
      has_total = multiply_in_short_sums(products, results, work.k_steps, p.schedule.sum_steps);
    else if constexpr (!plan::only_stores)
      for (; k < work.k_steps; ++k) products.next();
    driver.read(residual, work);
    products.finish();
    if constexpr (plan::short_sums)
      if (has_total)
        add_total(products, results);
    if (!is_known && !shared.passes(p))
      break;
    is_known = true;
    driver.prepare(work, facts);
    driver.take(results, products.sum, residual);
    if constexpr (plan::store_waits)
      is_waiting = true;
    else
      driver.store(results);
  }
  if constexpr (plan::store_waits)
    if (is_waiting)
      store_in_steps(driver, results, [] {});
  driver.drain();
}

}  // namespace tilesmith
