// C = A B where A is one row, and the lines of B run along K: one dot product for each of them. Products are exact in
// double, sums are rounded to float once. Memory is the limit.
//
// A block takes a few lines and a part of K. Neighbouring threads read neighbouring vectors, and those of A once for
// all lines. The sums of parts are added by another launch.

#include "kernels/whole_epilogue.cuh"
#include "ptx/grid.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int vector = plan::vector;
constexpr int warps = plan::threads / 32;
constexpr int step_k = plan::threads * vector;
using Floats = Vector<float, vector>;

using plan::Parameters;

// Four elements, or as many of them as are left, and zeros.
template <bool aligned>
__device__ __forceinline__ Floats load(const float* from, long long stride, int left) {
  if (aligned && left >= vector)
    return *reinterpret_cast<const Floats*>(from);
  Floats x = {};
#pragma unroll
  for (int i = 0; i < vector; ++i)
    if (i < left)
      x.element[i] = from[i * stride];
  return x;
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    gemv(const __grid_constant__ Parameters p) {
  __shared__ double sums[plan::lines][warps];
  const int part = blockIdx.x / p.line_blocks;
  const int first_n = (blockIdx.x - part * p.line_blocks) * plan::lines;
  const int first_k = part * p.share_k;
  const int end_k = min(first_k + p.share_k, p.k);
  const float* line[plan::lines];
  // Lines that are not there are copies of the last one: their sums are not stored.
#pragma unroll
  for (int i = 0; i < plan::lines; ++i) line[i] = p.b + min(first_n + i, p.n - 1) * p.b_line_stride;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  double sum[plan::lines] = {};
  for (int k = first_k + threadIdx.x * vector; k < end_k; k += step_k) {
    Floats y[plan::lines];
#pragma unroll
    for (int i = 0; i < plan::lines; ++i) y[i] = load<plan::b_aligned>(line[i] + k, 1, end_k - k);
    const Floats x = load<plan::a_vectors>(p.a + k * p.a_stride, p.a_stride, end_k - k);
#pragma unroll
    for (int e = 0; e < vector; ++e) {
      const double wide = x.element[e];
#pragma unroll
      for (int i = 0; i < plan::lines; ++i) sum[i] += wide * static_cast<double>(y[i].element[e]);
    }
  }

#pragma unroll
  for (int i = 0; i < plan::lines; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
    if (threadIdx.x % 32 == 0)
      sums[i][threadIdx.x / 32] = sum[i];
  }
  __syncthreads();
  const int own = threadIdx.x;
  if (own < plan::lines && first_n + own < p.n) {
    double total = sums[own][0];
    for (int warp = 1; warp < warps; ++warp) total += sums[own][warp];
    const WholeEpilogue<float, 0> epilogue(p.epilogue);
    const long long at = part * p.out_part_stride + (first_n + own) * p.out_stride;
    if (p.out_is_partial)
      static_cast<double*>(p.out)[at] = total;
    else
      static_cast<float*>(p.out)[at] = epilogue.of(total, 0, first_n + own);
  }
}

}  // namespace tilesmith
