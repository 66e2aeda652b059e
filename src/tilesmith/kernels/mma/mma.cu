// C = A B for float32, by the products that a warp of the tensor cores has in its registers: of doubles, where products
// are exact, sums are of doubles and a result is rounded once; or of TF32, with sums of float32.
//
// A block computes a tile of C. Tiles of A and B pass through a ring in shared memory. The warps divide the tile, and
// K; what they have of K is added at the end, in order. Which k of the product instruction is which of K does not
// matter as long as both operands agree: a lane takes four neighbours. So it is with rows and columns, see group_of.
//
// Where tiles are few, K is cut into parts, of blocks next to each other in the grid's third dimension. These store
// sums of doubles, and leave the rest to split_k_reduce.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "batch.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "ptx/dmma.cuh"
#include "ptx/grid.cuh"
#include "ptx/tf32.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

constexpr int mma_m = plan::mma_m, mma_n = plan::mma_n, mma_k = plan::mma_k;
constexpr int warp_m = plan::tile_m / plan::warps_m;
constexpr int warp_n = plan::tile_n / plan::warps_n;
constexpr int mmas_m = warp_m / mma_m;
constexpr int mmas_n = warp_n / mma_n;
constexpr int k_round = mma_k * plan::warps_k;  // of K that all warps multiply at once
constexpr int tiles_of_warps = plan::warps_m * plan::warps_n;
static_assert(tiles_of_warps * plan::warps_k * 32 == plan::threads);
static_assert(mmas_m * mma_m == warp_m && mmas_n * mma_n == warp_n && plan::tile_k % k_round == 0);

constexpr int sums = 4 * mmas_m * mmas_n;    // of a lane: 2 mmas_m rows with two groups of mmas_n columns each
constexpr int share = sums / plan::warps_k;  // of those, what it stores
static_assert(share % mmas_n == 0);

using plan::Parameters;
using plan::Sum;
using OwnEpilogue = Epilogue<float, max_batch_dims>;

// What the tensor cores take of a float, for sums of a type.
template <typename>
struct Arithmetic;
template <>
struct Arithmetic<double> {
  using Factor = double;
  static constexpr bool cuts_off = false;
  static __device__ __forceinline__ double factor(float x) { return x; }
  static __device__ __forceinline__ void multiply_add(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
    ptx::dmma(sum, a, b);
  }
};
template <>
struct Arithmetic<float> {
  using Factor = unsigned;
  static constexpr bool cuts_off = true;
  static __device__ __forceinline__ unsigned factor(float x) { return ptx::to_tf32(x); }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[8], const unsigned (&b)[4]) {
    ptx::mma_tf32(sum, a, b);
  }
};
using Own = Arithmetic<Sum>;

using TileOfA = CopiedTile<plan::tile_m, plan::tile_k, 2 * mmas_m, plan::threads, plan::a_along_k, plan::a_aligned>;
using TileOfB = CopiedTile<plan::tile_n, plan::tile_k, mmas_n, plan::threads, plan::b_along_k, plan::b_aligned>;

struct RingStage {
  float a[TileOfA::floats];
  float b[TileOfB::floats];
};
struct Shared {
  RingStage ring[plan::stages];
};
static_assert(sizeof(Shared) == plan::shared_bytes);

// The sums of the warps that divide K, in the place of the ring.
using Pair = Vector<Sum, 2>;
using Partial = Pair[plan::warps_k][tiles_of_warps][sums / 2][32];
static_assert(plan::warps_k == 1 || (sizeof(Partial) <= sizeof(Shared) && share % 2 == 0));

// The results of all warps, in the same place. Rows are apart by an odd number of vectors.
using Results = float[plan::tile_m][plan::tile_n + 4];
static_assert(sizeof(Results) <= sizeof(Shared));
static_assert(plan::threads % plan::tile_n == 0);

// A thread's part of the tile.
struct Share {
  const int lane, warp_tile, warp_k;

  // That warp_k is one of few, the compiler cannot know of a number that it has forgotten.
  __device__ __forceinline__ explicit Share(unsigned thread)
      : lane(thread % 32),
        warp_tile(thread / 32 % tiles_of_warps),
        warp_k(thread % plan::threads / 32 / tiles_of_warps) {}

  __device__ __forceinline__ int first_n_of_warp() const { return warp_tile % plan::warps_n * warp_n; }
  __device__ __forceinline__ int first_m() const {
    return warp_tile / plan::warps_n * warp_m + group_of(lane / 4) * 2 * mmas_m;
  }
  // The i-th of the sums that it stores is in one of its groups of columns: there are two in each of its rows.
  __device__ __forceinline__ int group(int i) const { return (warp_k * share + i) / mmas_n; }
  __device__ __forceinline__ int first_column(int i) const {
    return first_n_of_warp() + group_of(lane % 4 * 2 + group(i) % 2) * mmas_n;
  }
};

// What this warp has of the sums to store, all parts of K added.
__device__ __forceinline__ void add_parts(Sum (&total)[share], const Sum (&sum)[sums], Shared& shared, int warp_k,
                                          int warp_tile, int lane) {
  if constexpr (plan::warps_k == 1) {
#pragma unroll
    for (int i = 0; i < share; ++i) total[i] = sum[i];
  } else {
    Partial& partial = reinterpret_cast<Partial&>(shared);
    Sum own[share];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < sums; i += 2) {
      if (i / share == warp_k) {
        own[i % share] = sum[i];
        own[i % share + 1] = sum[i + 1];
      } else {
        partial[warp_k][warp_tile][i / 2][lane] = {sum[i], sum[i + 1]};
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < share; i += 2) {
#pragma unroll
      for (int part = 0; part < plan::warps_k; ++part) {
        Pair x = {own[i], own[i + 1]};
        if (part != warp_k)
          x = partial[part][warp_tile][(warp_k * share + i) / 2][lane];
#pragma unroll
        for (int e = 0; e < 2; ++e) total[i + e] = part == 0 ? x.element[e] : total[i + e] + x.element[e];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  ptx::grid_launch_dependents();

  const int first_k = blockIdx.z * p.part_k, k = min(p.k - first_k, p.part_k);
  const float* a = p.a + first_k * p.a_stride_k;
  const float* b = p.b + first_k * p.b_stride_k;
  int tile_n = blockIdx.x;
  if (tile_n >= p.tiles_n) {
    const int matrix = blockIdx.x / p.tiles_n;
    tile_n -= matrix * p.tiles_n;
    const BatchIndex index = BatchIndex::of(matrix, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      a += index.at[d] * p.a_batch_strides[d];
      b += index.at[d] * p.b_batch_strides[d];
    }
  }
  const int first_m = blockIdx.y * plan::tile_m;
  const int first_n = tile_n * plan::tile_n;
  TileOfA a_tile(a, first_m, p.m, p.a_stride_m, p.a_stride_k);
  TileOfB b_tile(b, first_n, p.n, p.b_stride_n, p.b_stride_k);
  const auto start = [&](RingStage* stage, int k_left) {
    if (k_left > 0) {
      a_tile.start(stage->a, k_left);
      b_tile.start(stage->b, k_left);
    }
    ptx::copy_commit();
  };

  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int i = 0; i < plan::stages - 1; ++i) start(&shared.ring[i], k - i * plan::tile_k);

  const Share reader(threadIdx.x);
  const int warp_k = reader.warp_k;
  const int own_k = warp_k * mma_k + reader.lane % 4 * lane_k;
  const unsigned own_a = TileOfA::place(reader.first_m(), own_k);
  const unsigned own_b = TileOfB::place(reader.first_n_of_warp() + group_of(reader.lane / 4) * mmas_n, own_k);

  Sum sum[mmas_m][mmas_n][4] = {};
  const auto after = [&](RingStage* stage) {
    return stage == &shared.ring[plan::stages - 1] ? &shared.ring[0] : stage + 1;
  };
  RingStage* stage = &shared.ring[0];
  RingStage* free_stage = &shared.ring[plan::stages - 1];
  for (int k_left = k; k_left > 0; k_left -= plan::tile_k) {
    ptx::copy_wait<plan::stages - 2>();
    __syncthreads();  // the copies of all threads are there, and all have read what is free now
    start(free_stage, k_left - (plan::stages - 1) * plan::tile_k);
    Sum tile_sum[mmas_m][mmas_n][4];
    Sum(&found)[mmas_m][mmas_n][4] = Own::cuts_off ? tile_sum : sum;
    if constexpr (Own::cuts_off)
#pragma unroll
      for (int i = 0; i < sums; ++i) tile_sum[i / (4 * mmas_n)][i / 4 % mmas_n][i % 4] = 0;
#pragma unroll
    for (int in_tile = 0; in_tile < plan::tile_k; in_tile += k_round) {
      if (in_tile + warp_k * mma_k >= k_left)
        break;
      float a_values[2 * mmas_m][lane_k], b_values[mmas_n][lane_k];
      TileOfA::read(a_values, stage->a, TileOfA::beyond(own_a, TileOfA::place(0, in_tile)));
      TileOfB::read(b_values, stage->b, TileOfB::beyond(own_b, TileOfB::place(0, in_tile)));
      Own::Factor a_factors[mmas_m][2 * lane_k];
#pragma unroll
      for (int i = 0; i < mmas_m; ++i)
#pragma unroll
        for (int e = 0; e < 2 * lane_k; ++e) a_factors[i][e] = Own::factor(a_values[2 * i + e % 2][e / 2]);
#pragma unroll
      for (int j = 0; j < mmas_n; ++j) {
        Own::Factor b_factors[lane_k];
#pragma unroll
        for (int e = 0; e < lane_k; ++e) b_factors[e] = Own::factor(b_values[j][e]);
#pragma unroll
        for (int i = 0; i < mmas_m; ++i) Own::multiply_add(found[i][j], a_factors[i], b_factors);
      }
    }
    // The tensor cores cut off what does not fit into float32. Added here, it is rounded.
    if constexpr (Own::cuts_off)
#pragma unroll
      for (int i = 0; i < sums; ++i) {
        const int m = i / (4 * mmas_n), n = i / 4 % mmas_n, e = i % 4;
        sum[m][n][e] += tile_sum[m][n][e];
      }
    stage = after(stage);
    free_stage = after(free_stage);
  }

  // What follows is found out only now: until here, registers are scarce.
  const Share own(ptx::forgotten(threadIdx.x));
  long long out_offset = 0;
  OwnEpilogue epilogue(p.epilogue);
  if (const int block = ptx::forgotten(blockIdx.x); block >= p.tiles_n) {
    const BatchIndex index = BatchIndex::of(block / p.tiles_n, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) out_offset += index.at[d] * p.out_batch_strides[d];
    epilogue.move_to(index.at);
  }
  Sum ordered[sums], total[share];
#pragma unroll
  for (int i = 0; i < sums; ++i) ordered[i] = sum[i / (4 * mmas_n)][i % mmas_n][i / mmas_n % 4];
  add_parts(total, ordered, shared, own.warp_k, own.warp_tile, own.lane);

  const auto row_of = [&](int i) { return own.first_m() + own.group(i) / 2; };
  const auto column_of = [&](int i) { return own.first_column(i) + i % mmas_n; };

  if (p.out_is_partial) {
    double* const partial = static_cast<double*>(p.out) + out_offset + blockIdx.z * p.out_part_stride;
#pragma unroll
    for (int i = 0; i < share; ++i) {
      const int row = first_m + row_of(i), column = first_n + column_of(i);
      if (row < p.m && column < p.n)
        partial[row * p.out_stride_m + column * p.out_stride_n] = total[i];
    }
    return;
  }
  float* const out = static_cast<float*>(p.out) + out_offset;

  float values[share];
  if (epilogue.is_none()) {
#pragma unroll
    for (int i = 0; i < share; ++i) values[i] = static_cast<float>(total[i]);
  } else {
    // All that is added is read before the first result is stored: the reads wait for memory together.
    OwnEpilogue::Addends addends[share];
#pragma unroll
    for (int i = 0; i < share; ++i) {
      const int row = first_m + row_of(i), column = first_n + column_of(i);
      addends[i] = epilogue.addends(row, column, row < p.m && column < p.n);
    }
    constexpr int at_once = share > 8 ? mmas_n : share;  // those few need no turns
    epilogue.of_all<at_once>(values, total, addends);
  }
  using Group = Vector<float, mmas_n>;
  Group results[share / mmas_n];
#pragma unroll
  for (int i = 0; i < share; ++i) results[i / mmas_n].element[i % mmas_n] = values[i];

  if (p.out_is_aligned) {
#pragma unroll
    for (int i = 0; i < share; i += mmas_n) {
      const int row = first_m + row_of(i), column = first_n + column_of(i);
      float* const to = out + row * p.out_stride_m + column;
      if (row >= p.m)
        continue;
      if (column + mmas_n <= p.n) {
        *reinterpret_cast<Group*>(to) = results[i / mmas_n];
      } else {
#pragma unroll
        for (int e = 0; e < mmas_n; ++e)
          if (column + e < p.n)
            to[e] = results[i / mmas_n].element[e];
      }
    }
  } else {
    // A lane's results are stored one by one. In shared memory they change places, so that neighbours store neighbours.
    Results& exchanged = reinterpret_cast<Results&>(shared);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < share; i += mmas_n)
      *reinterpret_cast<Group*>(&exchanged[row_of(i)][column_of(i)]) = results[i / mmas_n];
    __syncthreads();
    const int column = threadIdx.x % plan::tile_n;
#pragma unroll 8
    for (int i = 0; i < plan::tile_m * plan::tile_n / plan::threads; ++i) {
      const int row = (i * plan::threads + static_cast<int>(threadIdx.x)) / plan::tile_n;
      if (first_m + row < p.m && first_n + column < p.n)
        out[(first_m + row) * p.out_stride_m + (first_n + column) * p.out_stride_n] = exchanged[row][column];
    }
  }
}

}  // namespace tilesmith
