// The ring of shared-memory stages between the producer, which fills them, and the consumers,
// which empty them. In a cluster a producer also fills stages of its neighbours, so a stage is
// empty when the consumers of all blocks are done with it.
#pragma once

#include "ptx/barrier.cuh"
#include "tile.cuh"

namespace tilesmith {

// `arrivals`: of a consumer that is done with a stage. One thread can speak for all of them if only tensor cores read
// the stage.
template <int stages, int consumers, int cluster, int arrivals = 1>
struct Pipeline {
  ptx::Barrier full[stages];
  ptx::Barrier empty[stages];

  // A place in the ring, and how often it has been passed, modulo two.
  struct Position {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  // One thread, before the barrier that starts the cluster's work.
  __device__ __forceinline__ void init() {
#pragma unroll
    for (int s = 0; s < stages; ++s) {
      ptx::barrier_init(full[s], 1);
      ptx::barrier_init(empty[s], consumers * arrivals * cluster);
    }
    ptx::barrier_init_fence();
  }

  // The producer waits for an empty stage, and announces the bytes that will fill it. The first
  // round finds all stages empty.
  __device__ __forceinline__ void acquire(Position at, unsigned bytes) {
    ptx::barrier_wait(empty[at.stage], at.parity ^ 1);
    ptx::barrier_arrive_expect(full[at.stage], bytes);
  }

  // The producer waits until a stage that it has filled is empty again.
  __device__ __forceinline__ void wait_empty(Position at) { ptx::barrier_wait(empty[at.stage], at.parity); }

  __device__ __forceinline__ void wait_full(Position at) { ptx::barrier_wait(full[at.stage], at.parity); }

  // Every thread of a consumer calls this; a few of them arrive.
  __device__ __forceinline__ void release(Position at, int thread) {
    const int place = thread % (warpgroup_threads / arrivals);
    if constexpr (cluster > 1) {
      if (place < cluster)
        ptx::barrier_arrive_remote(empty[at.stage], place);
    } else {
      if (place == 0)
        ptx::barrier_arrive(empty[at.stage]);
    }
  }
};

}  // namespace tilesmith
