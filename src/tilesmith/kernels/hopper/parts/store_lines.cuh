// Results leave shared memory by the threads, in lines that may start and end at any element of the output.
#pragma once

#include "kernels/hopper/staging.cuh"
#include "ptx/shared.cuh"

namespace tilesmith {

static_assert(plan::out_store == Store::lines && plan::out_by_warp == !plan::out_along_m);

class Storer : public Staging<false> {
  static constexpr int lines_of_warp = Chunk::lines / (plan::out_by_warp ? 1 : 4);
  static constexpr int at_once = lines_of_warp < 4 ? lines_of_warp : 4;  // lines of a part
  static constexpr int step = plan::out_by_warp ? 1 : 4;                 // from one line of a warp to the next
  static constexpr int length = Chunk::length;

 public:
  static constexpr int parts = lines_of_warp / at_once;  // that a chunk is sent in

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
    const int m = to.first_m + first_m(), n = to.first_n + first_n(which);
    plan::OutputLines lines = lines_;
    lines.first = to.matrix;
    send_lines<Output>(lines, chunk(which), plan::out_along_m ? n : m, plan::out_along_m ? m : n,
                       (plan::out_by_warp ? 0 : warp_) + part * at_once * step, lane_);
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
  // Writes a few lines of a staged chunk, as far as they are inside the output: every `step`-th one from `first` on.
  template <typename Element>
  __device__ __forceinline__ void send_lines(const plan::OutputLines& out, unsigned chunk, int first_line,
                                             int first_in_line, int first, int lane) const {
    const int end = min(length, out.length - first_in_line);
    const int lines = min(Chunk::lines, out.count - first_line);
    if (end <= 0)
      return;
    Element* to = out.first + first_line * out.stride + first_in_line;

    if constexpr (sizeof(Element) == 4) {
#pragma unroll
      for (int x = lane; x < length; x += 32) {
        float value[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i)
          value[i] = __uint_as_float(ptx::shared_load(Chunk::address(chunk, (first + i * step) % Chunk::lines, x)));
#pragma unroll
        for (int i = 0; i < at_once; ++i)
          if (first + i * step < lines && x < end)
            to[(first + i * step) * out.stride + x] = value[i];
      }
    } else {
      unsigned pairs[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        pairs[i] = ptx::shared_load(Chunk::address(chunk, (first + i * step) % Chunk::lines, lane * 2 % length));
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        // Elements go in pairs that are aligned in memory. A line that starts with half of a pair gives its first
        // and its last element alone, and pairs of what lies in two lanes.
        Element* const at = to + (first + i * step) * out.stride;
        const int is_odd = reinterpret_cast<unsigned long long>(at) / sizeof(Element) % 2;
        const unsigned before = __shfl_up_sync(0xffffffffu, pairs[i], 1);
        const unsigned pair = __funnelshift_l(before, pairs[i], 16 * is_odd);
        const int x = lane * 2 - is_odd, last = first + i * step < lines ? end - 1 : -2;
        Element* const own = at + x;
        // Without branches: most of a line's time would be theirs.
        if (x >= 0 && x < last)
          *reinterpret_cast<unsigned*>(own) = pair;
        if (x == last)
          own[0] = {static_cast<unsigned short>(pair)};
        if (x < 0 && last >= 0)
          own[1] = {static_cast<unsigned short>(pair >> 16)};
        if (length == 64 && is_odd && lane == 31 && last == length - 1)
          own[2] = {static_cast<unsigned short>(pairs[i] >> 16)};
      }
    }
  }
};

}  // namespace tilesmith
