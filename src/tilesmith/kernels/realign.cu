// Copies 16-bit operands whose strides TMA cannot take into dense, padded lines. One
// launch serves both operands of a product.
//
// All vectors of 16 bytes of the copies are counted, and each thread makes a few. The source of a line may start at any
// element: it is read in aligned vectors, and shifted into place.

#include "batch.cuh"
#include "element.cuh"
#include "ptx/global.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

using Bits = unsigned short;
constexpr int vector = 16 / sizeof(Bits);
constexpr int at_once = plan::at_once;  // of a thread
static_assert(vector == plan::vector);

using plan::Copy;
using plan::Parameters;

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

// What a thread copies: the vector at an element of a line. None, if that is past its end.
struct Part {
  const Bits* from;  // the line's start
  Bits* to;
  int at;
};

__device__ __forceinline__ Part part(const Copy& c, unsigned number) {
  const unsigned line = number / c.vectors_of_line;
  unsigned batch = line / c.lines;
  const Bits* from = c.source + (line - batch * c.lines) * c.line_stride;
  if (batch > 0)
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      from += batch % c.batch_size[d] * c.batch_stride[d];
      batch /= c.batch_size[d];
    }
  const int at = static_cast<int>(number - line * c.vectors_of_line) * vector;
  return {from, c.target + line * c.pitch + at, number < c.vectors ? at : c.length};
}

// Copies a warp's vectors, of which the first is `first`.
__device__ __forceinline__ void copy_vectors(const Copy& c, unsigned first, int lane) {
  Part parts[at_once];
#pragma unroll
  for (int i = 0; i < at_once; ++i) parts[i] = part(c, first + i * 32 + lane);

  if (c.element_stride == 1) {
    Words words[at_once][2];
    int ahead[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const Part& own = parts[i];
      ahead[i] = static_cast<int>(reinterpret_cast<unsigned long long>(own.from) % 16 / sizeof(Bits));
      const Bits* const aligned = own.from - ahead[i] + own.at;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool holds_some = own.at < c.length && own.at + j * vector < ahead[i] + c.length;
        words[i][j] = {};
        if (holds_some)
          words[i][j] = ptx::load_once(reinterpret_cast<const Words*>(aligned) + j);
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (parts[i].at < c.length)
        *reinterpret_cast<Words*>(parts[i].to) = shifted(words[i][0], words[i][1], ahead[i]);
  } else {
    for (const Part& own : parts) {
      if (own.at < c.length) {
        Vector<Bits, vector> gathered = {};
#pragma unroll
        for (int e = 0; e < vector; ++e)
          if (own.at + e < c.length)
            gathered.element[e] = own.from[(own.at + e) * c.element_stride];
        *reinterpret_cast<Vector<Bits, vector>*>(own.to) = gathered;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads) realign(const __grid_constant__ Parameters p) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  constexpr unsigned of_warp = 32 * at_once;
  unsigned first = (blockIdx.x * (plan::threads / 32) + threadIdx.x / 32) * of_warp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Copy& copy = p.copies[i];
    if (first < copy.vectors) {
      copy_vectors(copy, first, threadIdx.x % 32);
      return;
    }
    first -= (copy.vectors + of_warp - 1) / of_warp * of_warp;
  }
}

}  // namespace tilesmith
