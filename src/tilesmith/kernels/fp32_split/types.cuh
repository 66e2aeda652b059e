// What the parts of the split kernel share: its operands, its shared memory, and how a block divides its work.
#pragma once

#include "batch.cuh"
#include "kernels/fp32_split/extent.cuh"
#include "kernels/fp32_split/range_check.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int vector = 4;
constexpr int max_rows = plan::max_rows;

using Floats = Vector<float, vector>;
using Term = Vector<unsigned, vector / 2>;  // pairs of 16-bit numbers

using plan::Operand;
using plan::Parameters;

struct Shared {
  // Two of each, for tasks that follow each other.
  unsigned peak[2][max_rows];
  int large[2][max_rows];  // in 32nds
  int inexact[2][max_rows];
  unsigned sample[2][max_rows];  // the largest value of the row's sample, as bits
  unsigned fine[2][max_rows];    // not zero if a value of it has more than 16 bits
  unsigned block_sample[2];
  RangeStats range_stats;
  Extent extent[2];
};

__device__ constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

// A kind of operand, and how the threads of a block share a row block of it. If lines run along the rows, that has
// max_rows of them, and otherwise a power of two, as the parameters tell.
template <typename Source_, int terms_, bool mn_major_, Access access_>
struct Kind {
  using Source = Source_;
  static constexpr int terms = terms_;
  static constexpr bool mn_major = mn_major_;
  static constexpr Access access = access_;
  static constexpr int at_once = 4;                       // steps whose values are under way
  static constexpr int own_rows = mn_major ? vector : 1;  // of a thread

  // Of the threads, how many are side by side along a line.
  static __device__ __forceinline__ int log2_lanes(const Operand& o) {
    return mn_major ? log2_of(max_rows / vector) : o.log2_lanes;
  }
  static __device__ __forceinline__ int lanes(const Operand& o) { return 1 << log2_lanes(o); }
  // How many lines they have at once.
  static __device__ __forceinline__ int lines(const Operand& o) { return plan::threads >> log2_lanes(o); }
  // Of the row block.
  static __device__ __forceinline__ int rows(const Operand& o) { return mn_major ? max_rows : lines(o); }
  // Along K.
  static __device__ __forceinline__ int step(const Operand& o) { return mn_major ? lines(o) : lanes(o) * vector; }
  // Of a row.
  static __device__ __forceinline__ int log2_samples(const Operand& o) { return min(log2_lanes(o), mn_major ? 4 : 5); }
  static __device__ __forceinline__ int samples(const Operand& o) { return 1 << log2_samples(o); }
};

}  // namespace tilesmith
