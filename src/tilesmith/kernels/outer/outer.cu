// C = A B where K is short: the sum of a few outer products, on the CUDA cores. To store C takes most of the time.
//
// A block computes a tile of C, of all columns of which each warp has a few rows. All of K fits into shared memory, so
// that a block waits but once; while it does, others of its SM multiply and store.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "batch.cuh"
#include "element.cuh"
#include "ptx/grid.cuh"
#include "ptx/store_once.cuh"
#include "vector.cuh"

namespace tilesmith {

using plan::Parameters;

constexpr int vector = 4;
constexpr int own_rows = plan::tile_m / (plan::threads / 32);  // of a warp
constexpr int own_columns = plan::tile_n / 32;                 // of a lane
static_assert(own_rows % vector == 0 && own_columns == vector);

using Floats = Vector<float, vector>;
template <int extent>
using Tile = float[plan::max_k][extent + vector];

struct Shared {
  Tile<plan::tile_m> a;
  Tile<plan::tile_n> b;
};
static_assert(sizeof(Shared) == plan::shared_bytes);

// Copies so many rows of A, or columns of B, and zeros for those that are not there. Threads that are neighbours read
// neighbours. `along_k`: these are.
template <int extent>
__device__ __forceinline__ void load(Tile<extent>& tile, const float* from, int rows, int depth, long long stride,
                                     long long stride_k, bool along_k) {
  constexpr int at_once = 8;  // reads of a thread that memory has at the same time
  if (along_k) {
    constexpr int step = plan::threads / plan::max_k;
    static_assert(plan::threads % plan::max_k == 0 && extent % (step * at_once) == 0);
    const int k = threadIdx.x % plan::max_k;
    if (k >= depth)
      return;
    from += k * stride_k;
#pragma unroll
    for (int first = threadIdx.x / plan::max_k; first < extent; first += step * at_once) {
      float values[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = first + i * step;
        values[i] = row < rows ? from[row * stride] : 0;
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) tile[k][first + i * step] = values[i];
    }
  } else {
    constexpr int step = plan::threads / extent;
    static_assert(plan::threads % extent == 0);
    const int row = threadIdx.x % extent;
    from += row * stride;
#pragma unroll 1
    for (int first = threadIdx.x / extent; first < depth; first += step * at_once) {
      float values[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int k = first + i * step;
        values[i] = k < depth && row < rows ? from[k * stride_k] : 0;
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (first + i * step < depth)
          tile[first + i * step][row] = values[i];
    }
  }
}

__device__ __forceinline__ Floats read(const float* from) { return *reinterpret_cast<const Floats*>(from); }

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    outer(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  ptx::grid_launch_dependents();

  const float* a = p.a;
  const float* b = p.b;
  float* out = p.out;
  int tile_n = blockIdx.x;
  if (tile_n >= p.tiles_n) {
    const int matrix = tile_n / p.tiles_n;
    tile_n -= matrix * p.tiles_n;
    const BatchIndex index = BatchIndex::of(matrix, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      a += index.at[d] * p.a_batch_strides[d];
      b += index.at[d] * p.b_batch_strides[d];
      out += index.at[d] * p.out_batch_strides[d];
    }
  }
  const int first_m = blockIdx.y * plan::tile_m, first_n = tile_n * plan::tile_n;
  const int rows = p.m - first_m, columns = p.n - first_n;  // that are inside of the output
  ptx::grid_dependency_wait();
  load<plan::tile_m>(shared.a, a + first_m * p.a_stride_m, rows, p.k, p.a_stride_m, p.a_stride_k, p.a_along_k);
  load<plan::tile_n>(shared.b, b + first_n * p.b_stride_n, columns, p.k, p.b_stride_n, p.b_stride_k, p.b_along_k);
  __syncthreads();

  const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * own_rows;
  if (own_row >= rows)
    return;
  // Where lines are aligned, a lane's columns are neighbours, which it stores at once.
  const auto column_of = [&](int i) { return plan::stores_vectors ? lane * vector + i : i * 32 + lane; };
  float sum[own_rows][own_columns] = {};
#pragma unroll 2
  for (int k = 0; k < p.k; ++k) {
    float own_a[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i) own_a[i] = read(&shared.a[k][own_row + i / vector * vector]).element[i % vector];
    Floats own_b;
    if constexpr (plan::stores_vectors)
      own_b = read(&shared.b[k][column_of(0)]);
    else
#pragma unroll
      for (int j = 0; j < own_columns; ++j) own_b.element[j] = shared.b[k][column_of(j)];
#pragma unroll
    for (int i = 0; i < own_rows; ++i)
#pragma unroll
      for (int j = 0; j < own_columns; ++j) sum[i][j] = multiply_add(own_a[i], own_b.element[j], sum[i][j]);
  }

  out += (first_m + own_row) * p.out_stride_m + first_n * p.out_stride_n;
#pragma unroll
  for (int i = 0; i < own_rows; ++i, out += p.out_stride_m) {
    if (own_row + i >= rows)
      break;
    if constexpr (plan::stores_vectors) {
      if (column_of(0) < columns)
        ptx::store_once(reinterpret_cast<Floats*>(out + column_of(0)), {sum[i][0], sum[i][1], sum[i][2], sum[i][3]});
    } else {
#pragma unroll
      for (int j = 0; j < own_columns; ++j)
        if (column_of(j) < columns)
          ptx::store_once(out + column_of(j) * p.out_stride_n, sum[i][j]);
    }
  }
}

}  // namespace tilesmith
