// C = A B for a few rows of A, on the CUDA cores: B is read once, and a value of it meets all rows at once.
// K is cut into short parts, each with blocks of its own; their sums are added by another launch.
//
//   plan::b_along_k false   the lines of B run along N: a thread has a few columns, and walks along K
//   plan::b_along_k true    they run along K: a warp has four columns, its lanes share K
//
// A part of A is kept in shared memory.

#include "ptx/grid.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int rows = plan::rows;
constexpr int columns = plan::columns;  // of a thread, or of a warp
constexpr int vector = 4;
constexpr int most_k = 512;    // of a part
constexpr int short_sum = 64;  // of K
using Floats = Vector<float, vector>;

struct Parameters {
  const float* a;
  const float* b;
  float* out;
  long long a_stride_m, a_stride_k;
  long long b_line_stride;
  long long out_part_stride, out_stride_m, out_stride_n;
  int m, n, k;
  int part_k;         // of a part, the last one may have less
  int column_blocks;  // that share a part
  int unused;
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

// `count` values of a line of B, as far as it goes.
template <int count>
__device__ __forceinline__ Vector<float, count> load(const float* line, int at, int length) {
  if (plan::b_aligned && at + count <= length)
    return *reinterpret_cast<const Vector<float, count>*>(line + at);
  Vector<float, count> x = {};
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (at + i < length)
      x.element[i] = line[at + i];
  return x;
}

struct Part {
  int first_k, depth;
  float* out;

  __device__ __forceinline__ Part(const Parameters& p) {
    const int part = blockIdx.x / p.column_blocks;
    first_k = part * p.part_k;
    depth = min(p.part_k, p.k - first_k);
    out = p.out + part * p.out_part_stride;
  }
};

// The sums of four columns in each thread.
__device__ __forceinline__ void sum_along_n(const Parameters& p) {
  __shared__ float a[most_k][rows];
  const Part part(p);
  for (int i = threadIdx.x; i < rows * p.part_k; i += plan::threads) {
    const int m = i / p.part_k, k = i - m * p.part_k;
    a[k][m] = m < p.m && k < part.depth ? p.a[m * p.a_stride_m + (part.first_k + k) * p.a_stride_k] : 0.0f;
  }
  __syncthreads();

  const int first_n = blockIdx.x % p.column_blocks * plan::threads * columns;
  const int n = first_n + static_cast<int>(threadIdx.x) * columns;
  const float* line = p.b + part.first_k * p.b_line_stride;
  constexpr int at_once = 8;
  // What is read ahead. All of it is inside of B, for all threads, in most blocks.
  Vector<float, columns> ahead[at_once];
  const bool all_columns = plan::b_aligned && first_n + plan::threads * columns <= p.n;
  const auto fetch = [&](int first) {
    if (all_columns && first + at_once <= part.depth) {
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        ahead[i] = *reinterpret_cast<const Vector<float, columns>*>(line + (first + i) * p.b_line_stride + n);
    } else {
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        ahead[i] = load<columns>(line + (first + i) * p.b_line_stride, n, first + i < part.depth ? p.n : 0);
    }
  };
  float sum[rows][columns] = {}, whole[rows][columns] = {};
  fetch(0);
  for (int first = 0; first < part.depth; first += at_once) {
    Vector<float, columns> b[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) b[i] = ahead[i];
    fetch(first + at_once);
#pragma unroll
    for (int i = 0; i < at_once; ++i)
#pragma unroll
      for (int m = 0; m < rows; ++m) {
        const float x = a[first + i][m];  // a part's depth is a multiple of at_once, or zeros follow
#pragma unroll
        for (int c = 0; c < columns; ++c) sum[m][c] = __fmaf_rn(x, b[i].element[c], sum[m][c]);
      }
    if ((first + at_once) % short_sum == 0 || first + at_once >= part.depth) {
#pragma unroll
      for (int m = 0; m < rows; ++m)
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          whole[m][c] += sum[m][c];
          sum[m][c] = 0.0f;
        }
    }
  }
#pragma unroll
  for (int m = 0; m < rows; ++m)
#pragma unroll
    for (int c = 0; c < columns; ++c)
      if (m < p.m && n + c < p.n)
        part.out[m * p.out_stride_m + (n + c) * p.out_stride_n] = whole[m][c];
}

// Adds the lanes' values. Each step halves what a lane has to care for: lane by lane, they end up with two of 64 sums,
// or with less.
template <int count, int distance>
__device__ __forceinline__ void add_lanes(float (&values)[count], int lane) {
  if constexpr (distance > 0) {
    if constexpr (count > 1) {
      float half[count / 2];
      const bool upper = lane & distance;
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const float given = upper ? values[i] : values[i + count / 2];
        const float kept = upper ? values[i + count / 2] : values[i];
        half[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
      }
      add_lanes<count / 2, distance / 2>(half, lane);
#pragma unroll
      for (int i = 0; i < count / 2; ++i) values[i] = half[i];
    } else {
      values[0] += __shfl_xor_sync(0xffffffffu, values[0], distance);
      add_lanes<1, distance / 2>(values, lane);
    }
  }
}

// The sums of four columns in each warp.
__device__ __forceinline__ void sum_along_k(const Parameters& p) {
  __shared__ alignas(16) float a[rows][most_k];
  const Part part(p);
  for (int i = threadIdx.x; i < rows * most_k; i += plan::threads) {
    const int m = i / most_k, k = i % most_k;
    a[m][k] = m < p.m && k < part.depth ? p.a[m * p.a_stride_m + (part.first_k + k) * p.a_stride_k] : 0.0f;
  }
  __syncthreads();

  constexpr int sums = rows * columns;
  constexpr int step = 32 * vector;
  const int warps = p.column_blocks * (plan::threads / 32);
  const int lane = threadIdx.x % 32;
  const int warp = blockIdx.x % p.column_blocks * (plan::threads / 32) + threadIdx.x / 32;
  for (int n = warp * columns; n < p.n; n += warps * columns) {
    Floats ahead[columns];
    const auto fetch = [&](int k) {
#pragma unroll
      for (int c = 0; c < columns; ++c)
        ahead[c] = load<vector>(p.b + min(n + c, p.n - 1) * p.b_line_stride + part.first_k, k, part.depth);
    };
    float sum[sums] = {};
    fetch(lane * vector);
    for (int k = lane * vector; k < part.depth; k += step) {
      Floats b[columns];
#pragma unroll
      for (int c = 0; c < columns; ++c) b[c] = ahead[c];
      fetch(k + step);
#pragma unroll
      for (int m = 0; m < rows; ++m) {
        const Floats x = *reinterpret_cast<const Floats*>(&a[m][k]);
#pragma unroll
        for (int c = 0; c < columns; ++c)
#pragma unroll
          for (int i = 0; i < vector; ++i)
            sum[m * columns + c] = __fmaf_rn(x.element[i], b[c].element[i], sum[m * columns + c]);
      }
    }
    add_lanes<sums, 16>(sum, lane);
    // The sums that a lane has now: its bits, from the highest on, chose a half each time.
    constexpr int left = sums > 32 ? sums / 32 : 1;
    int index = 0;
#pragma unroll
    for (int distance = 16, size = sums; distance > 0 && size > 1; distance /= 2) {
      size /= 2;
      index += lane & distance ? size : 0;
    }
    const bool is_first = sums >= 32 || (lane & (32 / (sums < 32 ? sums : 32) - 1)) == 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const int m = (index + i) / columns, c = (index + i) % columns;
      if (is_first && m < p.m && n + c < p.n)
        part.out[m * p.out_stride_m + (n + c) * p.out_stride_n] = sum[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads) thin(const __grid_constant__ Parameters p) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if constexpr (plan::b_along_k)
    sum_along_k(p);
  else
    sum_along_n(p);
}

}  // namespace tilesmith
