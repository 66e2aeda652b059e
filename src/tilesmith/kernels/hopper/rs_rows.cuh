// Splits float32 fragments in registers into the terms that split.cu would have made of them. What the range statistics
// need to know is counted on the way.
#pragma once

#include "kernels/fp32_split/powers.cuh"
#include "kernels/fp32_split/range_check.cuh"
#include "kernels/fp32_split/term_pair.cuh"
#include "kernels/hopper/fp32_tile.cuh"
#include "ptx/half.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

// The A of one instruction, for one term.
using TermFragment = unsigned[Fp32Fragment::registers];

// What a thread has of two rows, lane / 4 and 8 more, as scaled float16 terms.
template <int terms>
class ScaledRows {
  static constexpr unsigned half_infinity = 0x7c00, half_nan = 0x7fff;

  float scale_[2];
  float peak_[2];   // of the finite values as they are
  float large_[2];  // in 32nds
  int inexact_[2];
  unsigned special_;  // a pair of float16, with a NaN if there are infinities or NaNs

 public:
  // `factors`: what undoes the scales, of so many rows as the warp has. Those that follow have none, but whatever lies
  // there: it must not make anything of their zeros.
  __device__ __forceinline__ void start(const int (&factors)[2], int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = threadIdx.x % 32 / 4 + 8 * h;
      scale_[h] = row < rows ? __int_as_float((254 << 23) - factors[h]) : 0.0f;
      peak_[h] = large_[h] = 0.0f;
      inexact_[h] = 0;
    }
    special_ = 0;
  }

  __device__ __forceinline__ void split(const Fp32Fragment& x, TermFragment (&to)[terms]) {
    unsigned least = RangeStats::large_pair;
    unsigned large[2];
    TermPair<terms> pairs[Fp32Fragment::registers];
    float most[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Fp32Fragment::registers; ++i) {
      const int h = i % 2;
      const float low = x.values[2 * i], high = x.values[2 * i + 1];
      pairs[i] = half_terms<terms>(low * scale_[h], high * scale_[h]);
#pragma unroll
      for (int p = 0; p < terms; ++p) to[p][i] = pairs[i].term[p];
      const unsigned size = ptx::half_pair_absolute(pairs[i].term[0]);
      special_ = ptx::half_pair_max_or_nan(special_, size);
      const unsigned counted = ptx::half_pair_min(size, RangeStats::large_pair);
      least = ptx::half_pair_min(least, counted);
      large[h] = i < 2 ? counted : ptx::half_pair_add(large[h], counted);
      most[h] = fmaxf(most[h], fmaxf(fabsf(low), fabsf(high)));
    }
    keep_peaks(x, most);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      large_[h] += ptx::half_to_float(static_cast<unsigned short>(large[h])) +
                   ptx::half_to_float(static_cast<unsigned short>(large[h] >> 16));
    if (min(least & 0xffff, least >> 16) < safe_half<terms>) {
#pragma unroll
      for (int i = 0; i < Fp32Fragment::registers; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const unsigned first = pairs[i].term[0] >> 16 * e & 0x7fff;
          inexact_[i % 2] += is_inexact<terms>(first, pairs[i].left[e], x.values[2 * i + e]);
        }
    }
  }

  // Joins the lanes that have parts of the same rows. Gives the exponents that undo these rows' wide scales to `keep`,
  // with the number of the row in the warp, and returns the range statistics of the warp's rows, or of so many of them
  // as there are. `is_whole`: the rows have no other parts.
  template <typename Keep>
  __device__ __forceinline__ RangeStats finish(int rows, int depth, bool is_whole, Keep keep) {
    RangeStats range_stats = RangeStats::none();
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int inexact = inexact_[h];
      float large = large_[h], peak = peak_[h];
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        large += __shfl_xor_sync(0xffffffffu, large, distance);
        inexact += __shfl_xor_sync(0xffffffffu, inexact, distance);
        peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
      }
      const int row = lane / 4 + 8 * h;
      if (row >= rows)
        continue;
      if (lane % 4 == 0)
        keep(row, wide_undoing_exponent(__float_as_uint(peak), depth));
      if (peak == 0.0f && is_whole)
        continue;  // a row of zeros is exact
      const float scaled_peak = peak * scale_[h];
      range_stats.add({static_cast<int>(large) / RangeStats::large, inexact, __float_as_int(scaled_peak),
                       scaled_peak >= 65504.0f ? RangeStats::too_large : 0});
    }
    if ((special_ & 0x7fff) > half_infinity || (special_ >> 16) > half_infinity)
      range_stats.beyond = RangeStats::special;
    return warp_total(range_stats);
  }

 private:
  // `largest`: the sizes of the largest values of both rows.
  __device__ __forceinline__ void keep_peaks(const Fp32Fragment& x, const float (&largest)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = largest[h];
      if (__float_as_uint(most) >= infinity) {
        most = 0.0f;
        special_ = half_nan;
#pragma unroll
        for (int i = h; i < Fp32Fragment::registers; i += 2)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (size_of(x.values[2 * i + e]) < infinity)
              most = fmaxf(most, fabsf(x.values[2 * i + e]));
      }
      peak_[h] = fmaxf(peak_[h], most);
    }
  }
};

// The same as wide bfloat16 terms, with nothing to count.
template <int terms>
class FullRangeRows {
  WideFactor factor_[2];

 public:
  // `exponents`: what undoes the scales.
  __device__ __forceinline__ void start(const int (&exponents)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) factor_[h] = WideFactor(-exponents[h]);
  }

  __device__ __forceinline__ void split(const Fp32Fragment& x, TermFragment (&to)[terms]) const {
#pragma unroll
    for (int i = 0; i < Fp32Fragment::registers; ++i) {
      const WideFactor& factor = factor_[i % 2];
      const auto pair = bfloat16_terms<terms>(x.values[2 * i], x.values[2 * i + 1], factor, factor);
#pragma unroll
      for (int p = 0; p < terms; ++p) to[p][i] = pair.term[p];
    }
  }

  __device__ __forceinline__ void kinds(const Fp32Fragment& x, TermFragment& to) const {
#pragma unroll
    for (int i = 0; i < Fp32Fragment::registers; ++i) to[i] = kind_pair(x.values[2 * i], x.values[2 * i + 1]);
  }
};

}  // namespace tilesmith
