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

constexpr int sums = 4 * mmas_m * mmas_n;    // of a lane: 2 mmas_m rows with two groups of mmas_n columns each
constexpr int share = sums / plan::warps_k;  // of those, what it stores
static_assert(share % mmas_n == 0);

using plan::Output;
using plan::Parameters;
using plan::Sum;

// The sums of the warps that divide K.
using Pair = Vector<Sum, 2>;
using PartsOfK = Pair[plan::warps_k][tiles_of_warps][sums / 2][32];

// The results of all warps. Rows are apart by an odd number of vectors.
using Results = Output[plan::tile_m][plan::tile_n + 16 / sizeof(Output)];
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

// Stores what is inside of the output, of a tile whose first element is `out`, with `rows` and `columns` before the
// output's edges: neighbours by neighbours.
__device__ __forceinline__ void store(const Results& results, Output* out, int rows, int columns, const Parameters& p) {
  const int column = threadIdx.x % plan::tile_n;
#pragma unroll 8
  for (int i = 0; i < plan::tile_m * plan::tile_n / plan::threads; ++i) {
    const int row = (i * plan::threads + static_cast<int>(threadIdx.x)) / plan::tile_n;
    if (row < rows && column < columns)
      out[row * p.out_stride_m + column * p.out_stride_n] = results[row][column];
  }
}

// The same for results of 16 bits whose columns lie side by side: two at once, from where a row has an even address.
__device__ __forceinline__ void store_pairs(const Results& results, Output* out, int rows, int columns,
                                            const Parameters& p) {
  constexpr int pairs = plan::tile_n / 2;
  const int pair = threadIdx.x % pairs;
#pragma unroll 4
  for (int i = 0; i < plan::tile_m * pairs / plan::threads; ++i) {
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
