// Results wait in registers, and are stored in small steps while the next tile is multiplied.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(plan::store_waits && sizeof(Output) == 2, "there are registers for results of 16 bits");

class Outgoing {
  bool is_waiting_ = false;

  // Of a chunk: all, where the stores take all the time.
  static constexpr int parts_written_out = plan::only_stores ? Storer::parts : 1;

  // Stages a chunk of results, which are in registers: of those a compiler must know the number.
  template <int from = 0>
  __device__ __forceinline__ void stage(const Delivery& delivery, const Results& results, int chunk) const {
    if constexpr (from < chunks) {
      if (chunk == from)
        delivery.storer.stage<from>(results);
      else
        stage<from + 1>(delivery, results, chunk);
    }
  }

  // Calls `meanwhile` after each step. These are loops, and not written out for each chunk: otherwise a kernel takes
  // several times as long to compile.
  template <typename Meanwhile>
  __device__ __forceinline__ void store_in_steps(const Delivery& delivery, const Results& results,
                                                 const Meanwhile& meanwhile) const {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      stage(delivery, results, chunk);
      delivery.change(chunk, meanwhile);
#pragma unroll parts_written_out
      for (int part = 0; part < Storer::parts; ++part) {
        delivery.storer.send(chunk, part, delivery.to);
        meanwhile();
      }
    }
  }

 public:
  // While the tensor cores multiply.
  __device__ __forceinline__ void store_meanwhile(const Delivery& delivery, const Results& results, Steps& steps) {
    if (is_waiting_)
      store_in_steps(delivery, results, [&] { steps.next(); });
  }

  // Results of a tile are there.
  __device__ __forceinline__ void store(const Delivery&, const Results&) { is_waiting_ = true; }

  // There are no more.
  __device__ __forceinline__ void finish(const Delivery& delivery, const Results& results) {
    if (is_waiting_)
      store_in_steps(delivery, results, [] {});
    delivery.storer.drain();
  }
};

}  // namespace tilesmith
