// Results leave shared memory by the threads, in lines that may start and end at any element of the output.
//
// Memory takes 16 bytes at a time best, where their address is a multiple of 16. So a line is cut where the output has
// such addresses, and not where the chunk does: what a chunk has left over at its end leaves with the next one, and
// single elements are stored only where a tile begins and where it ends.
#pragma once

#include "kernels/hopper/staging.cuh"
#include "ptx/global.cuh"
#include "ptx/shared.cuh"
#include "vector.cuh"

namespace tilesmith {

static_assert(plan::out_store == Store::lines && plan::out_by_warp == !plan::out_along_m && plan::store_buffers == 1);

class Storer : public Staging<true, 16> {
  static constexpr bool continues = !plan::out_along_m;  // a line goes on in the next chunk
  static_assert(!continues || Chunk::lines <= 32, "a lane for each line");
  static constexpr int vector = 16 / sizeof(Output);  // elements
  static constexpr int length = Chunk::length;
  static constexpr int per_line = length / vector;  // lanes
  static constexpr int lines_of_warp = Chunk::lines / (plan::out_by_warp ? 1 : 4);
  static constexpr int at_once = lines_of_warp < 32 / per_line ? lines_of_warp : 32 / per_line;  // lines
  static constexpr int busy = at_once * per_line;                                                // lanes

 public:
  static constexpr int parts = lines_of_warp / at_once;  // that a chunk is sent in

  using Staging::Staging;

  template <int which>
  __device__ __forceinline__ void stage(const Results& results) const {
    sync();
    if constexpr (continues && which > 0)
      take_over<which>();
    results.write<Chunk, which * plan::chunk>(chunk(which), warp_, lane_);
    publish();
  }

  // What is staged has been written, or changed.
  __device__ __forceinline__ void publish() const { sync(); }

  __device__ __forceinline__ void send(int which, int part, const Destination& to) const {
    const int m = to.first_m + first_m(), n = to.first_n + first_n(which);
    const int first_line = plan::out_along_m ? n : m, first = plan::out_along_m ? m : n, left = lines_.length - first;
    if (left <= 0)
      return;
    const int own = part * at_once + lane_ / per_line % at_once;
    const int line = plan::out_by_warp ? own : warp_ + 4 * own;
    const bool is_inside = lane_ < busy && first_line + line < lines_.count;
    Output* const at = to.matrix + (first_line + line) * lines_.stride + first;
    send_line(at, Chunk::address(chunk(which), line, 0), is_inside, min(length, left), !continues || which == 0,
              !continues || which == chunks - 1 || left <= length);
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
  // Puts the last 16 bytes of each line of the chunk before in front of the next chunk's.
  template <int which>
  __device__ __forceinline__ void take_over() const {
    const int line = lane_ % Chunk::lines;
    const Vector<unsigned, 4> last = ptx::shared_load_vector(Chunk::address(chunk(which - 1), line, length - vector));
    __syncwarp();  // it is in the buffer that is written now
    if (lane_ < Chunk::lines)
      ptx::shared_store(Chunk::address(chunk(which), line, -vector), last);
  }

  // Stores the lane's part of a line that is staged at `staged`: elements up to `end`, and those of the chunk before
  // that are left, unless the line `begins` here. If it `ends` here, nothing is left.
  __device__ __forceinline__ void send_line(Output* at, unsigned staged, bool is_inside, int end, bool begins,
                                            bool ends) const {
    const int skew = reinterpret_cast<unsigned long long>(at) / sizeof(Output) % vector;
    const int x = lane_ % per_line * vector - skew;
    const bool is_whole = is_inside && x + vector <= end && (x >= 0 || !begins);
    const Vector<unsigned, 4> value = load(staged, is_whole ? x : 0);
    if (is_whole)
      ptx::store(reinterpret_cast<Vector<unsigned, 4>*>(at + x), value);
    const int begun = begins ? min((vector - skew) % vector, end) : -vector;
    if (begins)
      send_elements(at, staged, 0, is_inside ? begun : 0);
    if (ends)
      send_elements(at, staged, max((end + skew) / vector * vector - skew, begun), is_inside ? end : -vector);
  }

  // Stores fewer elements than a vector has, one by one.
  __device__ __forceinline__ void send_elements(Output* at, unsigned staged, int first, int end) const {
#pragma unroll
    for (int i = 0; i < vector; i += per_line) {
      const int x = first + i + lane_ % per_line;
      if (x < end)
        at[x] = element(staged, x);
    }
  }

  // A vector from an element of a staged line on. A pair of 16-bit elements is in one word, or in two.
  static __device__ __forceinline__ Vector<unsigned, 4> load(unsigned staged, int x) {
    const int is_odd = sizeof(Output) == 2 ? x & 1 : 0;
    const unsigned from = staged + (x - is_odd) * static_cast<int>(sizeof(Output));
    Vector<unsigned, 4> found;
#pragma unroll
    for (int i = 0; i < 4; ++i) found.element[i] = ptx::shared_load(from + 4 * i);
    if constexpr (sizeof(Output) == 2) {
      const unsigned last = ptx::shared_load(from + 12 + 4 * is_odd);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        found.element[i] = __funnelshift_r(found.element[i], i < 3 ? found.element[i + 1] : last, 16 * is_odd);
    }
    return found;
  }

  template <typename Element = Output>
  static __device__ __forceinline__ Element element(unsigned staged, int x) {
    if constexpr (sizeof(Element) == 4)
      return __uint_as_float(ptx::shared_load(staged + 4 * x));
    else
      return {static_cast<unsigned short>(ptx::shared_load(staged + (x - (x & 1)) * 2) >> 16 * (x & 1))};
  }
};

}  // namespace tilesmith
