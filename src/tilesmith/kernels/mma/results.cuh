// How the sums of mma.cu become results: which of the tile a lane has, and how a block stores a tile.
#pragma once

#include "element.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int warp_m = plan::tile_m / plan::warps_m;
constexpr int warp_n = plan::tile_n / plan::warps_n;
constexpr int mmas_m = warp_m / plan::mma_m;
constexpr int mmas_n = warp_n / plan::mma_n;
constexpr int tiles_of_warps = plan::warps_m * plan::warps_n;
static_assert(tiles_of_warps * plan::warps_k * 32 == plan::threads);
static_assert(mmas_m * plan::mma_m == warp_m && mmas_n * plan::mma_n == warp_n);

constexpr int sums = 4 * mmas_m * mmas_n;                   // of a lane
constexpr int neighbours = plan::by_matrices ? 2 : mmas_n;  // of these, columns side by side
constexpr bool stores_from_registers = !plan::by_matrices;  // a vector is what a lane has side by side
constexpr int share = sums / plan::warps_k;                 // of those, what it stores
static_assert(share % neighbours == 0);

using plan::Output;
using plan::Parameters;
using plan::Sum;

// The sums of the warps that divide K.
using Pair = Vector<Sum, 2>;
using PartsOfK = Pair[plan::warps_k][tiles_of_warps][sums / 2][32];

// The results of all warps, or of as many rows as the ring has room for. Rows are apart by an odd number of vectors.
using ResultRow = Output[plan::tile_n + 16 / sizeof(Output)];
constexpr int turns = (plan::tile_m * sizeof(ResultRow) - 1) / plan::shared_bytes + 1;
constexpr int turn_rows = plan::tile_m / turns;
using Results = ResultRow[turn_rows];
static_assert(plan::threads % plan::tile_n == 0 && plan::tile_m % turns == 0);

// A thread's part of the tile.
struct Share {
  const int lane, warp_tile, warp_k;

  // That warp_k is one of few, the compiler cannot know of a number that it has forgotten.
  __device__ __forceinline__ explicit Share(unsigned thread)
      : lane(thread % 32),
        warp_tile(thread / 32 % tiles_of_warps),
        warp_k(thread % plan::threads / 32 / tiles_of_warps) {}

  __device__ __forceinline__ int first_n_of_warp() const { return warp_tile % plan::warps_n * warp_n; }
  __device__ __forceinline__ int first_m_of_warp() const { return warp_tile / plan::warps_n * warp_m; }
  __device__ __forceinline__ int first_m() const { return first_m_of_warp() + group_of(lane / 4) * 2 * mmas_m; }

  // The row and the column of the i-th of the sums that it stores.
  __device__ __forceinline__ int row(int i) const {
    if constexpr (plan::by_matrices)
      return first_m_of_warp() + i / (2 * mmas_n) * 8 + lane / 4;
    return first_m() + (warp_k * share + i) / mmas_n / 2;
  }
  __device__ __forceinline__ int column(int i) const {
    if constexpr (plan::by_matrices)
      return first_n_of_warp() + i / 2 % mmas_n * 8 + lane % 4 * 2 + i % 2;
    return first_n_of_warp() + group_of(lane % 4 * 2 + (warp_k * share + i) / mmas_n % 2) * mmas_n + i % mmas_n;
  }
  // Where the product instructions have that sum.
  static __device__ __forceinline__ constexpr int mma_m(int i) { return i / (4 * mmas_n); }
  static __device__ __forceinline__ constexpr int mma_n(int i) {
    return plan::by_matrices ? i / 2 % mmas_n : i % mmas_n;
  }
  static __device__ __forceinline__ constexpr int of_mma(int i) {
    return plan::by_matrices ? i / (2 * mmas_n) % 2 * 2 + i % 2 : i / mmas_n % 4;
  }
};

// What this warp has of the sums to store, all parts of K added.
__device__ __forceinline__ void add_parts(Sum (&total)[share], const Sum (&sum)[sums], PartsOfK& partial, int warp_k,
                                          int warp_tile, int lane) {
  if constexpr (plan::warps_k == 1) {
#pragma unroll
    for (int i = 0; i < share; ++i) total[i] = sum[i];
  } else {
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

// Stores what is inside of the output, of results whose first element is `out`, with `rows` and `columns` before the
// output's edges: neighbours by neighbours.
__device__ __forceinline__ void store(const Results& results, Output* out, int rows, int columns, const Parameters& p) {
  const int column = threadIdx.x % plan::tile_n;
#pragma unroll 8
  for (int i = 0; i < turn_rows * plan::tile_n / plan::threads; ++i) {
    const int row = (i * plan::threads + static_cast<int>(threadIdx.x)) / plan::tile_n;
    if (row < rows && column < columns)
      out[row * p.out_stride_m + column * p.out_stride_n] = results[row][column];
  }
}

// The same of 16 bytes at a time, for lines that are aligned.
__device__ __forceinline__ void store_vectors(const Results& results, Output* out, int rows, int columns,
                                              const Parameters& p) {
  constexpr int vector = 16 / sizeof(Output), in_line = plan::tile_n / vector;
  const int column = threadIdx.x % in_line * vector;
#pragma unroll 4
  for (int i = 0; i < turn_rows * in_line / plan::threads; ++i) {
    const int row = (i * plan::threads + static_cast<int>(threadIdx.x)) / in_line;
    if (row < rows && column < columns)
      *reinterpret_cast<Vector<Output, vector>*>(out + row * p.out_stride_m + column) =
          *reinterpret_cast<const Vector<Output, vector>*>(&results[row][column]);
  }
}

// The same for results of 16 bits whose columns lie side by side: two at once, from where a row has an even address.
__device__ __forceinline__ void store_pairs(const Results& results, Output* out, int rows, int columns,
                                            const Parameters& p) {
  constexpr int pairs = plan::tile_n / 2;
  const int pair = threadIdx.x % pairs;
#pragma unroll 4
  for (int i = 0; i < turn_rows * pairs / plan::threads; ++i) {
    const int row = (i * plan::threads + static_cast<int>(threadIdx.x)) / pairs;
    Output* const line = out + row * p.out_stride_m;
    const int is_odd = reinterpret_cast<unsigned long long>(line) / sizeof(Output) % 2;
    if (row >= rows)
      continue;
    // Of an odd row, the first and the last element are alone.
    const bool is_apart = is_odd && pair == 0;
    const int first = is_apart ? 0 : 2 * pair - is_odd, second = is_apart ? plan::tile_n - 1 : first + 1;
    const Vector<Output, 2> both = {results[row][first], results[row][second]};
    if (!is_apart && second < columns) {
      *reinterpret_cast<Vector<Output, 2>*>(line + first) = both;
    } else {
      if (first < columns)
        line[first] = both.element[0];
      if (second < columns)
        line[second] = both.element[1];
    }
  }
}

}  // namespace tilesmith
