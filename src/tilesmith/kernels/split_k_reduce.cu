// Adds the partial products of a split K, in a fixed order, and stores the sums with any strides. Those of doubles are
// doubles: then the result is rounded once.
//
// A warp adds 32 vectors of four neighbours in a line. Where there are many splits, several warps take turns over those
// of the same vectors, and the first of them adds what they have found, in their order.

#include "batch.cuh"
#include "element.cuh"
#include "kernels/whole_epilogue.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

using plan::Output;
using plan::Parameters;

constexpr int warps = plan::threads / 32;
constexpr int turns = plan::turns;  // warps that share vectors
static_assert(warps % turns == 0);
constexpr int vector = plan::vector;
using Sums = Vector<plan::Partial, vector>;

using OwnEpilogue = WholeEpilogue<Output, max_batch_dims>;

extern "C" __global__ void __launch_bounds__(plan::threads) split_k_reduce(const __grid_constant__ Parameters p) {
  __shared__ Sums found[warps][32];
  const int warp = threadIdx.x / 32, turn = warp % turns, lane = threadIdx.x % 32;
  const long long at = (static_cast<long long>(blockIdx.x) * (warps / turns) + warp / turns) * 32 + lane;
  ptx::grid_dependency_wait();

  Sums sum = {};
  if (at < p.vectors) {
    const Sums* partial = reinterpret_cast<const Sums*>(p.partial) + at;
#pragma unroll 8
    for (int split = turn; split < p.split_k; split += turns) {
      const Sums next = partial[split * p.vectors];
#pragma unroll
      for (int e = 0; e < vector; ++e) sum.element[e] += next.element[e];
    }
  }
  found[warp][lane] = sum;
  __syncthreads();
  if (turn != 0 || at >= p.vectors)
    return;
#pragma unroll
  for (int t = 1; t < turns; ++t)
#pragma unroll
    for (int e = 0; e < vector; ++e) sum.element[e] += found[warp + t][lane].element[e];

  const long long per_line = p.pitch / vector;
  const long long line = at / per_line;
  const int first = static_cast<int>(at % per_line) * vector;
  Output* out = p.out + line % p.lines * p.line_stride;
  long long batch = line / p.lines;
  long long index[max_batch_dims];
#pragma unroll
  for (int d = 0; d < max_batch_dims; ++d) {
    index[d] = batch % p.batch_size[d];
    out += index[d] * p.batch_stride[d];
    batch /= p.batch_size[d];
  }
  if constexpr (has_epilogue) {
    OwnEpilogue epilogue(p.epilogue);
    epilogue.move_to(index);
#pragma unroll
    for (int e = 0; e < vector; ++e)
      if (first + e < p.length)
        sum.element[e] = epilogue.of(sum.element[e], line % p.lines, first + e);
  }
  if (p.out_is_aligned) {
    Vector<Output, vector> stored;
#pragma unroll
    for (int e = 0; e < vector; ++e)
      stored.element[e] = narrow<Output>(static_cast<OwnEpilogue::Value>(sum.element[e]));
    if (first < p.length)
      *reinterpret_cast<Vector<Output, vector>*>(out + first) = stored;
  } else {
#pragma unroll
    for (int e = 0; e < vector; ++e)
      if (first + e < p.length)
        out[(first + e) * p.element_stride] = narrow<Output>(static_cast<OwnEpilogue::Value>(sum.element[e]));
  }
}

}  // namespace tilesmith
