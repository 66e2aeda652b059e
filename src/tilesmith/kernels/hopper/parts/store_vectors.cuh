// Results leave shared memory by the threads, 16 bytes each, whole rows of a tile at a time: which memory prefers where
// K is one step, and stores take all the time. Lines of the output start at multiples of 16 bytes.
#pragma once

#include "kernels/hopper/staging.cuh"
#include "ptx/shared.cuh"
#include "vector.cuh"

namespace tilesmith {

static_assert(plan::out_store == Store::vectors && plan::out_by_warp && !plan::out_along_m);

class Storer : public Staging<true> {
  static constexpr int lines_of_part = 4;

 public:
  static constexpr int parts = Chunk::lines / lines_of_part;  // that a chunk is sent in

  using Staging::Staging;

  template <int which>
  __device__ __forceinline__ void stage(const Results& results) const {
    sync();
    results.write<Chunk, which * plan::chunk>(chunk(which), warp_, lane_);
    publish();
  }

  // What is staged has been written, or changed.
  __device__ __forceinline__ void publish() const { sync(); }

  __device__ __forceinline__ void send(int which, int part, const Destination& to) const {
    plan::OutputLines lines = lines_;
    lines.first = to.matrix;
    send_lines(lines, chunk(which), to.first_m + first_m(), to.first_n + first_n(which), part * lines_of_part, lane_);
  }

  // Both, of a whole chunk.
  template <int which>
  __device__ __forceinline__ void store(const Results& results, const Destination& to) const {
    stage<which>(results);
#pragma unroll 1
    for (int part = 0; part < parts; ++part) send(which, part, to);
  }

  __device__ __forceinline__ void drain() const {}

 private:
  // Writes a few lines of a staged chunk from `first` on, as far as they are inside the output.
  static __device__ __forceinline__ void send_lines(const plan::OutputLines& out, unsigned chunk, int first_line,
                                                    int first_in_line, int first, int lane) {
    constexpr int vector = 16 / sizeof(Output);
    constexpr int per_line = Chunk::length / vector;
    constexpr int at_once = lines_of_part * per_line / 32;
    static_assert(at_once * 32 == lines_of_part * per_line);
    Vector<unsigned, 4> staged[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int at = i * 32 + lane;
      staged[i] = ptx::shared_load_vector(Chunk::address(chunk, first + at / per_line, at % per_line * vector));
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int at = i * 32 + lane;
      const int line = first_line + first + at / per_line, in_line = first_in_line + at % per_line * vector;
      if (line < out.count && in_line < out.length)
        *reinterpret_cast<Vector<unsigned, 4>*>(out.first + line * out.stride + in_line) = staged[i];
    }
  }
};

}  // namespace tilesmith
