// C = A B on the CUDA cores: one chain of multiply-adds over K, in order, for any
// element type and any strides.
//
// A block computes a tile of C. Tiles of A and B pass through two buffers in shared memory:
// while one is multiplied, the next is on its way from global memory in registers; and while
// one step of K is multiplied, the next step's values are on their way from shared memory. A
// warp holds its part of the tile as 4 x 8 threads, each with groups of 16 bytes along M and N:
//
//            n ->    |  0  2 .. 14 |  0  2 .. 14 |     a thread's groups repeat across the
//     m              |  1  3 .. 15 |  1  3 .. 15 |     warp's tile, so that the lanes' reads
//     |              | 16 18 .. 30 | 16 18 .. 30 |     of one group lie side by side in
//     v              | 17 19 .. 31 | 17 19 .. 31 |     shared memory
//
// Neighbours (lanes that differ in bit 0) share columns and next neighbours (bit 1) share rows:
// with that the hardware serves a 16-byte read of half a warp at once.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "element.cuh"
#include "kernels/simt/staged_tile.cuh"
#include "kernels/whole_epilogue.cuh"
#include "ptx/warp.cuh"
#include "scheduler.cuh"

namespace tilesmith {

using plan::Accumulator;
using plan::Element;
using plan::Index;
using plan::Parameters;

constexpr int lanes_m = plan::lanes_m, lanes_n = plan::lanes_n;
constexpr int group = 16 / sizeof(Accumulator);
constexpr int warp_m = lanes_m * plan::thread_m;
constexpr int warp_n = lanes_n * plan::thread_n;
constexpr int warps_n = plan::tile_n / warp_n;
constexpr bool unrolls_tiles = plan::unrolled_k == plan::tile_k;
static_assert(plan::tile_k % plan::unrolled_k == 0 && plan::unrolled_k % 2 == 0);
static_assert(plan::tile_m / warp_m * warps_n * 32 == plan::threads);

struct Shared {
  Accumulator a[2][plan::tile_k][plan::a_pitch];
  Accumulator b[2][plan::tile_k][plan::b_pitch];
};
static_assert(sizeof(Shared) == plan::shared_bytes);

// The values of A and B that a thread multiplies in one step of K.
struct Fragments {
  Accumulator a[plan::thread_m];
  Accumulator b[plan::thread_n];

  __device__ __forceinline__ void read(const Accumulator* a_row, const Accumulator* b_row) {
    read_groups<plan::thread_m, lanes_m>(a, a_row);
    read_groups<plan::thread_n, lanes_n>(b, b_row);
  }

 private:
  // One lane's groups of a row, which lie `lanes` groups apart.
  template <int count, int lanes>
  static __device__ __forceinline__ void read_groups(Accumulator (&values)[count], const Accumulator* row) {
#pragma unroll
    for (int g = 0; g < count / group; ++g) {
      auto vector = *reinterpret_cast<const Vector<Accumulator, group>*>(row + g * lanes * group);
#pragma unroll
      for (int e = 0; e < group; ++e) values[g * group + e] = vector.element[e];
    }
  }
};

// Which row or column of the warp's tile a thread's i-th one is.
template <int lanes>
__device__ __forceinline__ int group_offset(int lane, int i) {
  return i / group * lanes * group + lane * group + i % group;
}

// Calls `move` with each dimension of the batch, and the index of this block's matrix in it.
template <typename Move>
__device__ __forceinline__ void for_batch_index(const Parameters& p, long long matrix, const Move& move) {
#pragma unroll 1
  for (int d = p.batch_dims - 1; d >= 0; --d) {
    move(d, matrix % p.batch[d].size);
    matrix /= p.batch[d].size;
  }
}

// A thread's sums, and where the first of them belongs in the output.
using Sums = Accumulator[plan::thread_m][plan::thread_n];
struct Corner {
  Index m, n;
};

using Row = Accumulator[plan::thread_n];

// Row i of them. Registers have no index that is known only when the kernel runs: each row has a branch.
__device__ __forceinline__ void copy_row(Row& row, const Sums& sums, int i) {
#pragma unroll
  for (int r = 0; r < plan::thread_m; ++r)
    if (r == i)
#pragma unroll
      for (int j = 0; j < plan::thread_n; ++j) row[j] = sums[r][j];
}

// Stores a row, of which those results are inside that have smaller indices than the output's columns.
template <int width, typename Output>
__device__ __forceinline__ void store(const Row& results, Output* out, Index first_n, const Parameters& p) {
  const Index n = p.n;
#pragma unroll
  for (int j = 0; j < plan::thread_n; j += width) {
    const Index column = first_n + group_offset<lanes_n>(0, j);
    Vector<Output, width> stored;
#pragma unroll
    for (int e = 0; e < width; ++e) stored.element[e] = narrow<Output>(results[j + e]);
    if (column < n) {
      auto* const to = reinterpret_cast<Vector<Output, width>*>(out + column * p.out_stride_n);
      if constexpr (plan::may_add)
        if (p.adds)
#pragma unroll
          for (int e = 0; e < width; ++e) stored.element[e] += to->element[e];
      *to = stored;
    }
  }
}

// The epilogue of a thread's sums in one row, which take each step together.
template <typename OwnEpilogue>
__device__ __forceinline__ void apply(const OwnEpilogue& epilogue, Row& sums, Index row, Index first_n,
                                      const Parameters& p) {
  const Index n = p.n;
  const bool of_rows = epilogue.is_bias_of_rows();
#pragma unroll
  for (int j = 0; j < plan::thread_n; ++j) {
    const Index column = first_n + group_offset<lanes_n>(0, j);
    if (column < n)
      sums[j] = epilogue.before_activation(sums[j], epilogue.bias_at(of_rows ? row : column));
  }
  epilogue.activate(sums);
  if (epilogue.has_residual())
#pragma unroll
    for (int j = 0; j < plan::thread_n; ++j) {
      const Index column = first_n + group_offset<lanes_n>(0, j);
      if (column < n)
        sums[j] = epilogue.with_residual(sums[j], epilogue.residual_at(row, column));
    }
}

// Stores the sums with the epilogue, in vectors as wide as the output has them. For all rows that would be most of what
// there is to compile: unrolled is only what most products have.
template <typename Output>
__device__ __forceinline__ void finish(const Sums& sums, Corner first, const Parameters& p) {
  Output* out = static_cast<Output*>(p.out);
  WholeEpilogue<Output, 1> epilogue(p.epilogue);
  const long long matrix = ptx::forgotten(blockIdx.y) + static_cast<long long>(gridDim.y) * blockIdx.z;
  for_batch_index(p, matrix, [&](int d, long long index) {
    out += index * p.batch[d].out_stride;
    epilogue.move_along(d, index);
  });
  const Index m = p.m;
  if (plan::unrolls_stores && p.out_vector == group) {
#pragma unroll
    for (int i = 0; i < plan::thread_m; ++i)
      if (const Index row = first.m + group_offset<lanes_m>(0, i); row < m)
        store<group>(sums[i], out + row * p.out_stride_m, first.n, p);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < plan::thread_m; ++i) {
    const Index row = first.m + group_offset<lanes_m>(0, i);
    if (row >= m)
      continue;
    Row results;
    copy_row(results, sums, i);
    if constexpr (has_epilogue)
      if (!epilogue.is_none())
        apply(epilogue, results, row, first.n, p);
    Output* const to = out + row * p.out_stride_m;
    if (!plan::unrolls_stores && p.out_vector == group)
      store<group>(results, to, first.n, p);
    else if (group > 2 && p.out_vector == 2)
      store<2>(results, to, first.n, p);
    else
      store<1>(results, to, first.n, p);
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    simt(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);

  const Element* a = p.a;
  const Element* b = p.b;
  const long long matrix = blockIdx.y + static_cast<long long>(gridDim.y) * blockIdx.z;
  if (matrix >= p.batches)
    return;
  for_batch_index(p, matrix, [&](int d, long long index) {
    a += index * p.batch[d].a_stride;
    b += index * p.batch[d].b_stride;
  });

  const Index size_m = p.m, size_n = p.n, k = p.k;
  TileCoordinate tile = grouped_tile(blockIdx.x, p.tiles_m, p.tiles_n, plan::raster_group);
  const Index first_m = static_cast<Index>(tile.m) * plan::tile_m;
  const Index first_n = static_cast<Index>(tile.n) * plan::tile_n;

  const int warp = threadIdx.x / 32;
  const int lane_m = threadIdx.x % 2 + threadIdx.x % 32 / 16 * 2;
  const int lane_n = threadIdx.x / 2 % lanes_n;
  const int warp_first_m = warp / warps_n * warp_m;
  const int warp_first_n = warp % warps_n * warp_n;

  StagedTile<Element, Accumulator, Index, plan::tile_m, plan::tile_k, plan::a_pitch, plan::threads, plan::a_along_k,
             plan::a_vector, unrolls_tiles>
      a_tile(a, first_m, size_m, p.a_stride_m, p.a_stride_k);
  StagedTile<Element, Accumulator, Index, plan::tile_n, plan::tile_k, plan::b_pitch, plan::threads, plan::b_along_k,
             plan::b_vector, unrolls_tiles>
      b_tile(b, first_n, size_n, p.b_stride_n, p.b_stride_k);

  Accumulator sum[plan::thread_m][plan::thread_n] = {};

  a_tile.load(k);
  b_tile.load(k);
  a_tile.store(shared.a[0]);
  b_tile.store(shared.b[0]);
  __syncthreads();

  const Accumulator* a_row = &shared.a[0][0][warp_first_m + lane_m * group];
  const Accumulator* b_row = &shared.b[0][0][warp_first_n + lane_n * group];
  Fragments fragments[2];
  fragments[0].read(a_row, b_row);

  int buffer = 0;
  for (Index k_left = k; k_left > 0; k_left -= plan::tile_k) {
#pragma unroll 1
    for (int first_kk = 0; first_kk < plan::tile_k; first_kk += plan::unrolled_k) {
      if (!unrolls_tiles && first_kk >= k_left)
        break;
#pragma unroll
      for (int i = 0; i < plan::unrolled_k; ++i) {
        const int kk = first_kk + i;
        if (kk == 0) {
          a_tile.load(k_left - plan::tile_k);
          b_tile.load(k_left - plan::tile_k);
        }
        if (i == plan::unrolled_k - 1 && kk == plan::tile_k - 1) {
          // One barrier a tile is enough: the buffer written here was last read before the previous one.
          buffer ^= 1;
          a_tile.store(shared.a[buffer]);
          b_tile.store(shared.b[buffer]);
          __syncthreads();
          a_row = &shared.a[buffer][0][warp_first_m + lane_m * group];
          b_row = &shared.b[buffer][0][warp_first_n + lane_n * group];
        }
        const int next = (kk + 1) % plan::tile_k;
        fragments[(i + 1) % 2].read(a_row + next * plan::a_pitch, b_row + next * plan::b_pitch);
        const Fragments& now = fragments[i % 2];
#pragma unroll
        for (int m = 0; m < plan::thread_m; ++m)
#pragma unroll
          for (int n = 0; n < plan::thread_n; ++n) sum[m][n] = multiply_add(now.a[m], now.b[n], sum[m][n]);
      }
    }
  }

  const Corner first = {first_m + warp_first_m + group_offset<lanes_m>(lane_m, 0),
                        first_n + warp_first_n + group_offset<lanes_n>(lane_n, 0)};
  if (sizeof(plan::WideOutput) > sizeof(Element) && p.out_is_wide)
    finish<plan::WideOutput>(sum, first, p);
  else
    finish<Element>(sum, first, p);
}

}  // namespace tilesmith
