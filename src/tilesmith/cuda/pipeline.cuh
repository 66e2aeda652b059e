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

  // One thread of each of the block's warps, before the barrier that starts the cluster's work: if a single one had all
  // of a long ring, that would put off the first load.
  template <int warps>
  __device__ __forceinline__ void init(int warp) {
#pragma unroll
    for (int first = 0; first < stages; first += warps)
      if (const int s = first + warp; first + warps <= stages || s < stages) {
        ptx::barrier_init(full[s], 1);
        ptx::barrier_init(empty[s], consumers * arrivals * cluster);
      }
    ptx::barrier_init_fence();
  }

  // The producer's warp waits for an empty stage, and the one of its threads that is elected announces the bytes that
  // will fill it. The first round finds all stages empty. All lanes go through the loop, so that what they agree on is
  // in uniform registers, from where TMA takes its operands; and together: who is two rounds late waits for the wrong
  // one.
  __device__ __forceinline__ void acquire(Position at, unsigned bytes, bool is_elected) {
    __syncwarp();
    ptx::barrier_wait(empty[at.stage], at.parity ^ 1);
    if (is_elected)
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
