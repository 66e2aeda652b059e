// A consumer: it multiplies its rows of one tile after the other, and stores them. How it does that, the plan's parts
// say: see gemm.cu.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

template <typename Shared>
__device__ __forceinline__ void consume(const Parameters& p, Shared& shared, Share share, int consumer) {
  Delivery delivery(p, shared, share, consumer);
  Products products(shared.ring, shared.a[0], shared.b[0], consumer);
  Results results;
  Outgoing outgoing;
  bool is_known = false;  // that results count
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    products.first();
    const Work work = tiles.work();
    auto ahead = delivery.read_ahead(work);
    Steps steps(products, work, p.schedule);
    outgoing.store_meanwhile(delivery, results, steps);
    steps.all(results);
    delivery.read_late(ahead, work);
    steps.finish(results);
    if (!is_known && !shared.passes(p))
      break;
    is_known = true;
    delivery.take(results, products.sum, work, ahead);
    outgoing.store(delivery, results);
  }
  outgoing.finish(delivery, results);
}

}  // namespace tilesmith
