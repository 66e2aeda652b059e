// Splits float32 fragments in registers into the planes that split.cu would have made of them. What the census needs to
// know is counted on the way.
#pragma once

#include "census.cuh"
#include "plane_pair.cuh"
#include "powers.cuh"
#include "ptx/half.cuh"
#include "ptx/warp.cuh"
#include "raw_tile.cuh"

namespace tilesmith {

// The A of one instruction, for one plane.
using PlaneFragment = unsigned[RawFragment::registers];

// What a thread has of two rows, lane / 4 and 8 more, as scaled float16 planes.
template <int planes>
class ScaledRows {
  static constexpr unsigned half_infinity = 0x7c00, half_nan = 0x7fff;

  float scale_[2];
  float peak_[2];   // of the finite values as they are
  float large_[2];  // in 32nds
  int lossy_[2];
  unsigned special_;  // a pair of float16, with a NaN if there are infinities or NaNs

 public:
  // `factors`: what undoes the scales.
  __device__ __forceinline__ void start(const int (&factors)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale_[h] = __int_as_float((254 << 23) - factors[h]);
      peak_[h] = large_[h] = 0.0f;
      lossy_[h] = 0;
    }
    special_ = 0;
  }

  __device__ __forceinline__ void split(const RawFragment& x, PlaneFragment (&to)[planes]) {
    unsigned least = Census::large_pair;
    unsigned large[2];
    PlanePair<planes> pairs[RawFragment::registers];
    float most[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < RawFragment::registers; ++i) {
      const int h = i % 2;
      const float low = x.values[2 * i], high = x.values[2 * i + 1];
      pairs[i] = half_planes<planes>(low * scale_[h], high * scale_[h]);
#pragma unroll
      for (int p = 0; p < planes; ++p) to[p][i] = pairs[i].plane[p];
      const unsigned size = ptx::half_pair_absolute(pairs[i].plane[0]);
      special_ = ptx::half_pair_max_or_nan(special_, size);
      const unsigned counted = ptx::half_pair_min(size, Census::large_pair);
      least = ptx::half_pair_min(least, counted);
      large[h] = i < 2 ? counted : ptx::half_pair_add(large[h], counted);
      most[h] = fmaxf(most[h], fmaxf(fabsf(low), fabsf(high)));
    }
    keep_peaks(x, most);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      large_[h] += ptx::half_to_float(static_cast<unsigned short>(large[h])) +
                   ptx::half_to_float(static_cast<unsigned short>(large[h] >> 16));
    if (min(least & 0xffff, least >> 16) < safe_half<planes>) {
#pragma unroll
      for (int i = 0; i < RawFragment::registers; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const unsigned first = pairs[i].plane[0] >> 16 * e & 0x7fff;
          lossy_[i % 2] += is_lossy<planes>(first, pairs[i].left[e], x.values[2 * i + e]);
        }
    }
  }

  // Of values that are not split: finds what the wide scheme needs to know, and nothing else.
  __device__ __forceinline__ void count(const RawFragment& x) {
    unsigned sizes[2] = {0, 0};  // as bits, where NaNs are the largest
#pragma unroll
    for (int i = 0; i < 2 * RawFragment::registers; ++i) sizes[i / 2 % 2] = max(sizes[i / 2 % 2], size_of(x.values[i]));
    keep_peaks(x, {__uint_as_float(sizes[0]), __uint_as_float(sizes[1])});
  }

  // Joins the lanes that have parts of the same rows. Gives the exponents that undo these rows' wide scales to `keep`,
  // with the number of the row in the warp, and returns the census of the warp's rows, or of so many of them as
  // there are. `is_whole`: the rows have no other parts.
  template <typename Keep>
  __device__ __forceinline__ Census finish(int rows, int depth, bool is_whole, Keep keep) {
    Census census = Census::none();
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int lossy = lossy_[h];
      float large = large_[h], peak = peak_[h];
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        large += __shfl_xor_sync(0xffffffffu, large, distance);
        lossy += __shfl_xor_sync(0xffffffffu, lossy, distance);
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
      census.add({static_cast<int>(large) / Census::large, lossy, __float_as_int(scaled_peak),
                  scaled_peak >= 65504.0f ? Census::too_large : 0});
    }
    if ((special_ & 0x7fff) > half_infinity || (special_ >> 16) > half_infinity)
      census.beyond = Census::special;
    return warp_total(census);
  }

 private:
  // `largest`: the sizes of the largest values of both rows.
  __device__ __forceinline__ void keep_peaks(const RawFragment& x, const float (&largest)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = largest[h];
      if (__float_as_uint(most) >= infinity) {
        most = 0.0f;
        special_ = half_nan;
#pragma unroll
        for (int i = h; i < RawFragment::registers; i += 2)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (size_of(x.values[2 * i + e]) < infinity)
              most = fmaxf(most, fabsf(x.values[2 * i + e]));
      }
      peak_[h] = fmaxf(peak_[h], most);
    }
  }
};

// The same as wide bfloat16 planes, with nothing to count.
template <int planes>
class WideRows {
  WideFactor factor_[2];

 public:
  // `exponents`: what undoes the scales.
  __device__ __forceinline__ void start(const int (&exponents)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) factor_[h] = WideFactor(-exponents[h]);
  }

  __device__ __forceinline__ void split(const RawFragment& x, PlaneFragment (&to)[planes]) const {
#pragma unroll
    for (int i = 0; i < RawFragment::registers; ++i) {
      const WideFactor& factor = factor_[i % 2];
      const auto pair = bfloat16_planes<planes>(x.values[2 * i], x.values[2 * i + 1], factor, factor);
#pragma unroll
      for (int p = 0; p < planes; ++p) to[p][i] = pair.plane[p];
    }
  }

  __device__ __forceinline__ void kinds(const RawFragment& x, PlaneFragment& to) const {
#pragma unroll
    for (int i = 0; i < RawFragment::registers; ++i) to[i] = kind_pair(x.values[2 * i], x.values[2 * i + 1]);
  }
};

}  // namespace tilesmith
