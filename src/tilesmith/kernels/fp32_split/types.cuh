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

// How the threads of a block share a row block.
//
// `parts` of K have been counted apart: its K chunks, or more of them where the product counts (`for_scales`).
// `corrects_bias`: see split.cu.
template <typename Source_, int terms_, bool mn_major_, Access access_, int rows_, int k_chunks_, bool finds_extents_,
          bool corrects_bias_, int parts_ = k_chunks_, bool for_scales_ = false>
struct RowBlock {
  using Source = Source_;
  static constexpr int terms = terms_;
  static constexpr bool mn_major = mn_major_;
  static constexpr Access access = access_;
  static constexpr int rows = rows_, k_chunks = k_chunks_, parts = parts_;
  static constexpr bool finds_extents = finds_extents_;
  static constexpr bool corrects_bias = corrects_bias_;
  static constexpr bool for_scales = for_scales_;
  static constexpr int lanes = mn_major ? rows / vector : plan::threads / rows;  // side by side along a line
  static constexpr int lines = plan::threads / lanes;                            // at once
  static constexpr int step = mn_major ? lines : lanes * vector;                 // along K
  static constexpr int at_once = 4;                                              // steps whose values are under way
  static constexpr int own_rows = mn_major ? vector : 1;                         // of a thread
  static constexpr int samples = mn_major ? lines : lanes < 32 ? lanes : 32;     // of a row
  static_assert(rows <= max_rows && lanes * lines == plan::threads);
};

}  // namespace tilesmith
