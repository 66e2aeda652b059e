// Barriers: mbarrier objects in shared memory, which count arrivals and bytes; named barriers
// of some of a block's threads; the barrier of a cluster. One instruction, one function.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

// Completes a phase when all arrivals and all expected bytes are there. Phases alternate
// between the parities 0 and 1.
struct Barrier {
  unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the whole cluster and to TMA.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, after which the phase also waits for `bytes` from TMA.
__device__ __forceinline__ void barrier_arrive_expect(Barrier& barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// One arrival at the barrier that lies at the same place in another block of the cluster.
__device__ __forceinline__ void barrier_arrive_remote(Barrier& barrier, unsigned block) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
}

// Waits for a while; true once the phase of this parity is complete.
__device__ __forceinline__ bool barrier_try_wait(Barrier& barrier, unsigned parity) {
  unsigned complete;
  asm volatile(
      "{\n.reg .pred complete;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n}"
      : "=r"(complete)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return complete;
}

__device__ __forceinline__ void barrier_wait(Barrier& barrier, unsigned parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Waits until `threads` threads of the block are at the named barrier `id`.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts this warp in without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders execution, not memory.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// What this thread wrote before can be seen by those who wait.
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

}  // namespace tilesmith::ptx
