// The emulator's barriers: see cuda/ptx/barrier.cuh.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

struct Barrier {
  unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals) {
  emulator::phase_init(&barrier, arrivals);
}
__device__ __forceinline__ void barrier_init_fence() { emulator::phase_init_fence(); }
__device__ __forceinline__ void barrier_arrive_expect(Barrier& barrier, unsigned bytes) {
  emulator::phase_arrive(&barrier, bytes);
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) { emulator::phase_arrive(&barrier, 0); }
__device__ __forceinline__ void barrier_arrive_remote(Barrier& barrier, unsigned block) {
  emulator::phase_arrive_remote(&barrier, block);
}
// It may wait as long as it likes: so it does, and deadlocks show.
__device__ __forceinline__ bool barrier_try_wait(Barrier& barrier, unsigned parity) {
  emulator::phase_wait(&barrier, parity);
  return true;
}
__device__ __forceinline__ void barrier_wait(Barrier& barrier, unsigned parity) {
  emulator::phase_wait(&barrier, parity);
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) { emulator::named_barrier(id, threads, true); }
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  emulator::named_barrier(id, threads, false);
}

__device__ __forceinline__ void cluster_arrive() { emulator::cluster_arrive(); }
__device__ __forceinline__ void cluster_arrive_release() { emulator::cluster_arrive(); }
__device__ __forceinline__ void cluster_wait() { emulator::cluster_wait(); }

}  // namespace tilesmith::ptx
