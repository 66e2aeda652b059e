// What the threads of a block count of the rows that they split.
#pragma once

#include "element.cuh"
#include "kernels/fp32_split/extent.cuh"
#include "kernels/fp32_split/powers.cuh"
#include "kernels/fp32_split/types.cuh"
#include "ptx/half.cuh"
#include "vector.cuh"

namespace tilesmith {

// What a thread reads at once: its part of a few steps.
template <typename Kind>
struct BatchOf {
  Vector<typename Kind::Source, vector> step[Kind::at_once];
};

// What a thread counts of its rows.
template <typename Kind>
struct RowCounts {
  static constexpr int own_rows = Kind::own_rows;

  unsigned peak[own_rows];  // of the finite values as they are
  float large[own_rows];    // in 32nds
  unsigned inexact[own_rows];
  bool special;  // an infinity or a NaN
  // Of the last few steps, as pairs of float16.
  unsigned large_pairs[vector / 2];
  unsigned peak_pairs[vector / 2];

  // Adds what the pairs have counted of these values to the rest.
  __device__ __forceinline__ void flush(const BatchOf<Kind>& x, const float (&undo)[own_rows]) {
#pragma unroll
    for (int i = 0; i < vector; ++i) large[i % own_rows] += half_of(large_pairs[i / 2], i % 2);
    if constexpr (own_rows == 1) {
      unsigned largest = ptx::half_pair_max_or_nan(peak_pairs[0], peak_pairs[1]);
      largest = ptx::half_pair_max_or_nan(largest, largest >> 16);
      note_peak<0, vector>(x, half_of(largest, 0), undo[0]);
    } else {
      note_peaks(x, undo);
    }
#pragma unroll
    for (int i = 0; i < vector / 2; ++i) large_pairs[i] = peak_pairs[i] = 0;
  }

  // A row's part of the values has this peak, scaled: half precision does, or they are read again.
  template <int first, int count>
  __device__ __forceinline__ void note_peak(const BatchOf<Kind>& x, float scaled, float undo) {
    unsigned& own = peak[first % own_rows];
    if (0x1p-14f <= scaled && scaled < 65504.0f) {
      own = max(own, __float_as_uint(scaled * undo));
      return;
    }
    for (const auto& step : x.step)
#pragma unroll
      for (int i = first; i < first + count; ++i) {
        const unsigned exact = size_of(widen<float>(step.element[i]));
        special |= exact >= infinity;
        own = max(own, exact < infinity ? exact : 0);
      }
  }
  template <int row = 0>
  __device__ __forceinline__ void note_peaks(const BatchOf<Kind>& x, const float (&undo)[own_rows]) {
    if constexpr (row < own_rows) {
      note_peak<row, 1>(x, half_of(peak_pairs[row / 2], row % 2), undo[row]);
      note_peaks<row + 1>(x, undo);
    }
  }

  static __device__ __forceinline__ float half_of(unsigned pair, int which) {
    return ptx::half_to_float(static_cast<unsigned short>(pair >> which * 16));
  }
};

// Forgets what was counted two tasks ago.
__device__ __forceinline__ void clear(Shared& shared, int parity) {
  if (threadIdx.x < max_rows) {
    shared.peak[parity][threadIdx.x] = 0;
    shared.large[parity][threadIdx.x] = 0;
    shared.inexact[parity][threadIdx.x] = 0;
    shared.sample[parity][threadIdx.x] = 0;
    shared.fine[parity][threadIdx.x] = 0;
    if (threadIdx.x == 0)
      shared.block_sample[parity] = 0;
    if (plan::finds_extents && threadIdx.x == 0)
      shared.extent[parity] = Extent::none();
  }
}

// Of vectors along K only the first place is known: they end in the same step of the product.
__device__ __forceinline__ void join(Extent own, Extent& joined) {
  own.add_lanes();
  if (threadIdx.x % 32 == 0) {
    atomicMin(&joined.first, own.first);
    atomicMax(&joined.end, own.end);
  }
}

// Joins the threads' values of each row, from a thread's first one on: first those of a warp, then in shared memory.
template <bool mn_major, int own_rows, typename Joined, typename Join, typename Atomic>
__device__ __forceinline__ void share(unsigned (&own)[own_rows], int lanes, Joined* joined, int row, Join join,
                                      Atomic atomic) {
  const int first = mn_major ? lanes : 1, past = mn_major ? 32 : min(lanes, 32);
#pragma unroll
  for (int i = 0; i < own_rows; ++i) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      if (first <= distance && distance < past)
        own[i] = join(own[i], __shfl_xor_sync(0xffffffffu, own[i], distance));
    const int lane = threadIdx.x % 32;
    if (mn_major ? lane < lanes : (lane & (past - 1)) == 0)
      atomic(&joined[row + i], own[i]);
  }
}

}  // namespace tilesmith
