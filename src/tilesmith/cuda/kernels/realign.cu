// Copies 16-bit operands whose strides the copy engine cannot take into dense, padded lines. One
// launch serves both operands of a product.
//
// A warp copies a segment of a line. The source of a line may start at any element: it is read in
// aligned vectors of 16 bytes, and shifted into place.

#include "batch.cuh"
#include "element.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

using Bits = unsigned short;
constexpr int vector = 16 / sizeof(Bits);
constexpr int vectors_per_lane = 4;
constexpr int segment = 32 * vectors_per_lane;  // in vectors

struct Copy {
  const Bits* from;
  Bits* to;
  long long line_stride, element_stride;  // of the source
  long long batch_stride[most_batch_dimensions];
  long long pitch;  // of the lines of the copy
  unsigned lines;   // of one matrix
  unsigned tasks;   // segments of all lines of all matrices
  int length;
  unsigned segments;  // of a line
  unsigned batch_size[most_batch_dimensions];
};

struct Parameters {
  Copy copies[plan::copies];
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

using Words = Vector<unsigned, 4>;

// The vector that starts `elements` after the start of the first of two neighbours.
__device__ __forceinline__ Words shifted(Words first, Words second, int elements) {
  unsigned w[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = first.element[i];
    w[i + 4] = second.element[i];
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = elements & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = elements & 2 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = elements & 1 ? __funnelshift_r(w[i], w[i + 1], 16) : w[i];
  return {{w[0], w[1], w[2], w[3]}};
}

__device__ __forceinline__ void copy_segment(const Copy& c, unsigned task, int lane) {
  const unsigned line = task / c.segments;
  unsigned batch = line / c.lines;
  const Bits* from = c.from + (line - batch * c.lines) * c.line_stride;
#pragma unroll
  for (int d = 0; d < plan::batch_rank; ++d) {
    from += batch % c.batch_size[d] * c.batch_stride[d];
    batch /= c.batch_size[d];
  }
  Bits* to = c.to + line * c.pitch;
  const int first = static_cast<int>(task - line * c.segments) * segment + lane;

  if (c.element_stride == 1) {
    const int ahead = static_cast<int>(reinterpret_cast<unsigned long long>(from) % 16 / sizeof(Bits));
    const Words* aligned = reinterpret_cast<const Words*>(from - ahead);
    const int available = (ahead + c.length + vector - 1) / vector;  // aligned vectors that hold parts of the line
    Words words[vectors_per_lane][2];
#pragma unroll
    for (int i = 0; i < vectors_per_lane; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = first + i * 32 + j;
        words[i][j] = at < available ? aligned[at] : Words{};
      }
#pragma unroll
    for (int i = 0; i < vectors_per_lane; ++i) {
      const int at = first + i * 32;
      if (at * vector < c.length)
        reinterpret_cast<Words*>(to)[at] = shifted(words[i][0], words[i][1], ahead);
    }
  } else {
    for (int i = 0; i < vectors_per_lane; ++i) {
      const int at = (first + i * 32) * vector;
      if (at < c.length) {
        Vector<Bits, vector> gathered = {};
#pragma unroll
        for (int e = 0; e < vector; ++e)
          if (at + e < c.length)
            gathered.element[e] = from[(at + e) * c.element_stride];
        *reinterpret_cast<Vector<Bits, vector>*>(to + at) = gathered;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads) realign(const __grid_constant__ Parameters p) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const unsigned warps = gridDim.x * (plan::threads / 32);
  const unsigned warp = blockIdx.x * (plan::threads / 32) + threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < plan::copies; ++i)
    for (unsigned task = warp; task < p.copies[i].tasks; task += warps)
      copy_segment(p.copies[i], task, threadIdx.x % 32);
}

}  // namespace tilesmith
