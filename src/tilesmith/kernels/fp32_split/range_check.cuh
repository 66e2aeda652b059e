// What the split of float32 operands into 16-bit terms finds out about their values, and what follows from it.
//
// A row of an operand (for B: a column) is scaled by a power of two that brings its values to the middle of float16's
// range, and each value becomes the sum of float16 terms. That keeps 22 bits of it, unless it is so small
// that its last term runs into float16's least number: then the error is up to 2^-25, and the value is inexact. That
// does no harm in a sum that has much larger terms. It has, for certain, if there are enough large values in the row
// and in the column: more than K in both together, so that some of them meet. Smaller ones count for a part: as
// x y >= x + y - 1 for all x and y from 0 to 1, the sum over K of min(a, 32) min(b, 32) is at least 2^10 times
// what the row and the column have of large values, less K.
#pragma once

#include "ptx/warp.cuh"

namespace tilesmith {

struct RangeStats {
  int min_large;    // large values of a row, parts of them added up, in the row that has the fewest
  int max_inexact;  // inexact values of a row, in the row that has the most
  int peak;         // the bits of the largest value, scaled
  int beyond;       // whether there are values that no scaled term can have

  // Of `beyond`.
  static constexpr int too_large = 1;  // for their row's scale
  static constexpr int special = 2;    // infinities or NaNs

  static constexpr int large = 32;  // and more; what is smaller counts for its part of it
  static constexpr unsigned large_pair = 0x50005000;

  static __device__ __forceinline__ RangeStats none() { return {1 << 23, 0, 0, 0}; }

  __device__ __forceinline__ void add(const RangeStats& other) {
    min_large = min(min_large, other.min_large);
    max_inexact = max(max_inexact, other.max_inexact);
    peak = max(peak, other.peak);
    beyond = max(beyond, other.beyond);
  }
  // Of the same rows, but another K chunk.
  __device__ __forceinline__ void add_k_chunk(const RangeStats& other) {
    min_large += other.min_large;
    max_inexact += other.max_inexact;
    peak = max(peak, other.peak);
    beyond = max(beyond, other.beyond);
  }

  // Adds those of the other lanes of the warp that have the same K chunk: they are a multiple of k_chunks apart. Not
  // what is the same for all K chunks.
  __device__ __forceinline__ void join_rows(int k_chunks) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const int large = __shfl_xor_sync(0xffffffffu, min_large, distance);
      const int inexact = __shfl_xor_sync(0xffffffffu, max_inexact, distance);
      min_large = distance >= k_chunks ? min(min_large, large) : min_large;
      max_inexact = distance >= k_chunks ? max(max_inexact, inexact) : max_inexact;
    }
  }
  // And then those that have another one.
  __device__ __forceinline__ void join_k_chunks(int k_chunks) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const int large = __shfl_xor_sync(0xffffffffu, min_large, distance);
      const int inexact = __shfl_xor_sync(0xffffffffu, max_inexact, distance);
      min_large += distance < k_chunks ? large : 0;
      max_inexact += distance < k_chunks ? inexact : 0;
    }
    peak = ptx::warp_max(peak);
    beyond = ptx::warp_max(beyond);
  }
};

enum class RangeCheck : int {
  in_range,
  full_range,  // there are values that need the bf16x3 scheme
  special,     // and infinities or NaNs
};

// Whether the errors of inexact values are below 2^-22 of what the large ones add up to. An error of 2^-25
// is multiplied by the other operand's peak at most; products of large values are at least 2^10. What was counted may
// be too much by a part of K: sums of parts are rounded, by less than 1 / 1000 of a large value for each of K.
__device__ __forceinline__ RangeCheck range_check(const RangeStats& a, const RangeStats& b, int depth) {
  const int beyond = max(a.beyond, b.beyond);
  if (beyond)
    return beyond == RangeStats::special ? RangeCheck::special : RangeCheck::full_range;
  const float shared_large = static_cast<float>(a.min_large + b.min_large - depth - (depth + 255) / 256);
  const float inexact = static_cast<float>(a.max_inexact) * __int_as_float(b.peak) +
                        static_cast<float>(b.max_inexact) * __int_as_float(a.peak);
  return inexact == 0.0f || inexact <= 0x1p13f * shared_large ? RangeCheck::in_range : RangeCheck::full_range;
}

// What a product leaves that counts the rows of A itself.
struct CountedCheck {
  RangeCheck found;
  unsigned arrived;  // blocks of the product, whose last one finds it
};

// The range statistics of an operand, from those of the blocks that split it. K is cut into `k_chunks` K chunks, a
// power of two, which the blocks have in turn; the row with the fewest large values has no fewer than the K chunks'
// least together. It is found by one warp alone, whose lanes all get it: for those who need not hurry.
__device__ __forceinline__ RangeStats total_of_blocks(const RangeStats* counted, int count, int k_chunks) {
  const int lane = threadIdx.x % 32, step = max(k_chunks, 32);  // between what a lane reads of one K chunk
  RangeStats sum = {0, 0, 0, 0};
  for (int first = lane; first < step; first += 32) {
    RangeStats k_chunk = RangeStats::none();
#pragma unroll 4
    for (int i = first; i < count; i += step) k_chunk.add(counted[i]);
    k_chunk.join_rows(k_chunks);
    sum.add_k_chunk(k_chunk);
  }
  sum.join_k_chunks(k_chunks);
  return sum;
}

// The range statistics of all that the lanes of a warp have counted.
__device__ __forceinline__ RangeStats warp_total(const RangeStats& range_stats) {
  return {-ptx::warp_max(-range_stats.min_large), ptx::warp_max(range_stats.max_inexact),
          ptx::warp_max(range_stats.peak), ptx::warp_max(range_stats.beyond)};
}

// The counts of those who add up the range statistics of parts of K.
template <int parts>
struct PartCounts {
  int min_large[parts], max_inexact[parts];
  RangeStats sum;
};

// The same by several warps, in shared memory; of parts of K that need not be a power of two. `count` range statistics
// are those of all parts of some rows, of all parts of some others, and so on. `threads` threads, of which this is
// number `thread`, wait for each other with `sync`, and all get it.
template <int threads, int max_parts, typename Sync>
__device__ __forceinline__ RangeStats total_of_parts(PartCounts<max_parts>& counts, const RangeStats* counted,
                                                     int count, int parts, int thread, Sync sync) {
  static_assert(max_parts <= threads);
  const int step = threads / parts * parts;  // a thread has one part; those that are left over have none
  const int part = thread % parts;
  if (thread < parts) {
    counts.min_large[part] = RangeStats::none().min_large;
    counts.max_inexact[part] = 0;
  }
  if (thread == 0)
    counts.sum = {0, 0, 0, 0};
  sync();
  RangeStats range_stats = RangeStats::none();
  if (thread < step)
#pragma unroll 4
    for (int i = thread; i < count; i += step) range_stats.add(counted[i]);
  atomicMin(&counts.min_large[part], range_stats.min_large);
  atomicMax(&counts.max_inexact[part], range_stats.max_inexact);
  const int peak = ptx::warp_max(range_stats.peak), beyond = ptx::warp_max(range_stats.beyond);
  if (thread % 32 == 0) {
    atomicMax(&counts.sum.peak, peak);
    atomicMax(&counts.sum.beyond, beyond);
  }
  sync();
  if (thread < parts) {
    atomicAdd(&counts.sum.min_large, counts.min_large[part]);
    atomicAdd(&counts.sum.max_inexact, counts.max_inexact[part]);
  }
  sync();
  return counts.sum;
}

}  // namespace tilesmith
