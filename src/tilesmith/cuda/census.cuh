// What the split of float32 operands into 16-bit planes finds out about their values, and what follows from it.
//
// A row of an operand (for B: a column) is scaled by a power of two that brings its values to the middle of float16's
// range, and each value becomes the sum of float16 planes. That keeps 22 bits of it, unless it is so small
// that its last plane runs into float16's least number: then the error is up to 2^-25, and the value is lossy. That
// does no harm in a sum that has much larger terms. It has, for certain, if there are enough large values in the row
// and in the column: more than K in both together, so that some of them meet. Smaller ones count for a part: as
// x y >= x + y - 1 for all x and y from 0 to 1, the sum over K of min(a, 32) min(b, 32) is at least 2^10 times
// what the row and the column have of large values, less K.
#pragma once

#include "ptx/warp.cuh"

namespace tilesmith {

struct Census {
  int least_large;  // large values of a row, parts of them added up, in the row that has the fewest
  int most_lossy;   // lossy values of a row, in the row that has the most
  int peak;         // the bits of the largest value, scaled
  int beyond;       // whether there are values that no scaled plane can have

  // Of `beyond`.
  static constexpr int too_large = 1;  // for their row's scale
  static constexpr int special = 2;    // infinities or NaNs

  static constexpr int large = 32;  // and more; what is smaller counts for its part of it
  static constexpr unsigned large_pair = 0x50005000;

  static __device__ __forceinline__ Census none() { return {1 << 23, 0, 0, 0}; }

  __device__ __forceinline__ void add(const Census& other) {
    least_large = min(least_large, other.least_large);
    most_lossy = max(most_lossy, other.most_lossy);
    peak = max(peak, other.peak);
    beyond = max(beyond, other.beyond);
  }
};

enum class Verdict : int {
  planes_suffice,
  wide,     // there are values that need the wide scheme
  special,  // and infinities or NaNs
};

// Whether the errors of lossy values are below 2^-22 of what the large ones add up to. An error of 2^-25
// is multiplied by the other operand's peak at most; products of large values are at least 2^10. What was counted may
// be too much by a part of K: sums of parts are rounded, by less than 1 / 1000 of a large value for each of K.
__device__ __forceinline__ Verdict verdict(const Census& a, const Census& b, int depth) {
  const int beyond = max(a.beyond, b.beyond);
  if (beyond)
    return beyond == Census::special ? Verdict::special : Verdict::wide;
  const float meetings = static_cast<float>(a.least_large + b.least_large - depth - (depth + 255) / 256);
  const float lossy = static_cast<float>(a.most_lossy) * __int_as_float(b.peak) +
                      static_cast<float>(b.most_lossy) * __int_as_float(a.peak);
  return lossy == 0.0f || lossy <= 0x1p13f * meetings ? Verdict::planes_suffice : Verdict::wide;
}

// Whether an operand needs the wide scheme whatever the other one is like: no other could make up for its lossy values,
// unless it is zero. That one's peak is at least 2^9.
__device__ __forceinline__ bool needs_wide(const Census& census) {
  return census.beyond || census.most_lossy >> 4 > census.least_large;
}

// The census of an operand, from those of `count` blocks. K is cut into `slabs` slabs, which the blocks have in turn;
// the row with the fewest large values has no fewer than the slabs' least together. All lanes of a warp get it.
template <int slabs>
__device__ __forceinline__ Census total(const Census* counted, int count) {
  Census sum = {0, 0, 0, 0};
  for (int first = 0; first < slabs; first += 32) {
    Census slab = Census::none();
    for (int i = first + threadIdx.x % 32; i < count; i += slabs < 32 ? 32 : slabs) slab.add(counted[i]);
#pragma unroll
    for (int distance = 16; distance >= slabs; distance /= 2) {
      slab.least_large = min(slab.least_large, __shfl_xor_sync(0xffffffffu, slab.least_large, distance));
      slab.most_lossy = max(slab.most_lossy, __shfl_xor_sync(0xffffffffu, slab.most_lossy, distance));
    }
    sum.least_large += slab.least_large;
    sum.most_lossy += slab.most_lossy;
    sum.peak = max(sum.peak, slab.peak);
    sum.beyond = max(sum.beyond, slab.beyond);
  }
#pragma unroll
  for (int distance = slabs < 32 ? slabs / 2 : 16; distance > 0; distance /= 2) {
    sum.least_large += __shfl_xor_sync(0xffffffffu, sum.least_large, distance);
    sum.most_lossy += __shfl_xor_sync(0xffffffffu, sum.most_lossy, distance);
  }
  sum.peak = ptx::warp_max(sum.peak);
  sum.beyond = ptx::warp_max(sum.beyond);
  return sum;
}

// The census of all that the lanes of a warp have counted.
__device__ __forceinline__ Census warp_total(const Census& census) {
  return {-ptx::warp_max(-census.least_large), ptx::warp_max(census.most_lossy), ptx::warp_max(census.peak),
          ptx::warp_max(census.beyond)};
}

// The counts of a block that adds up the censuses of parts of K.
template <int parts>
struct PartCounts {
  int least_large[parts], most_lossy[parts];
  Census sum;
};

// The census of an operand from those of groups of its rows, for each of which there are `parts`, one after the other.
// All threads of the block get it.
template <int threads, int parts>
__device__ __forceinline__ Census total_of_parts(PartCounts<parts>& counts, const Census* counted, int groups) {
  static_assert(parts <= threads);
  constexpr int shares = threads / parts;  // of the groups; a thread has one of them, and one part
  const int part = threadIdx.x % parts;
  if (threadIdx.x < parts) {
    counts.least_large[part] = Census::none().least_large;
    counts.most_lossy[part] = 0;
  }
  if (threadIdx.x == 0)
    counts.sum = {0, 0, 0, 0};
  __syncthreads();
  Census census = Census::none();
  if (threadIdx.x < shares * parts)
    for (int group = threadIdx.x / parts; group < groups; group += shares) census.add(counted[group * parts + part]);
  atomicMin(&counts.least_large[part], census.least_large);
  atomicMax(&counts.most_lossy[part], census.most_lossy);
  const int peak = ptx::warp_max(census.peak), beyond = ptx::warp_max(census.beyond);
  if (threadIdx.x % 32 == 0) {
    atomicMax(&counts.sum.peak, peak);
    atomicMax(&counts.sum.beyond, beyond);
  }
  __syncthreads();
  if (threadIdx.x < parts) {
    atomicAdd(&counts.sum.least_large, counts.least_large[part]);
    atomicAdd(&counts.sum.most_lossy, counts.most_lossy[part]);
  }
  __syncthreads();
  return counts.sum;
}

}  // namespace tilesmith
