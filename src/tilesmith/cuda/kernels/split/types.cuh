// What the parts of the split kernel share: its operands, its shared memory, and how a block divides its work.
#pragma once

#include "batch.cuh"
#include "census.cuh"
#include "extent.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int vector = 4;
constexpr int most_rows = 64;

using Floats = Vector<float, vector>;
using Plane = Vector<unsigned, vector / 2>;  // pairs of 16-bit numbers

struct Operand {
  const void* from;
  unsigned short* to;
  float* factors;       // for each row, what undoes its scale
  int* wide_exponents;  // for each row, the exponent of two that undoes the scale of the wide planes
  int* slab_exponents;  // what that would be for each slab alone
  Census* censuses;     // of the blocks; of A, if the product counts: of groups of rows, for each part of K
  Extent* extents;      // of every strip of rows and slab, if someone asks for them
  long long row_stride, k_stride;
  long long batch_stride[most_batch_dimensions];
  long long pitch;  // of the lines of the planes
  long long matrix_pitch;
  int rows, depth;
  int plane_depth;  // the depth of a plane, with its padding
  int slab_depth;   // what a block has of it
  int slab_pitch;   // of the slabs' exponents
  unsigned strips;  // of rows, in one matrix
  unsigned tasks;   // strips of all matrices
  int scale_pitch;
  unsigned first_block;  // that has a task
  unsigned batch_size[most_batch_dimensions];
};

struct Parameters {
  Operand operands[plan::operands];
  Verdict* verdict;
  int row_groups;      // of A, if the product counts
  int b_census_count;  // then
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

struct Shared {
  // Two of each, for tasks that follow each other.
  unsigned peak[2][most_rows];
  int large[2][most_rows];  // in 32nds
  int lossy[2][most_rows];
  unsigned sample[2][most_rows];  // the largest value of the row's sample, as bits
  unsigned fine[2][most_rows];    // not zero if a value of it has more than 16 bits
  unsigned strip_sample[2];
  Census census;
  Extent extent[2];
};

// How values that are side by side along a line are read.
enum class Access {
  vectors,   // aligned ones
  elements,  // one by one, and they are neighbours in memory
  strided,   // or are not
};

// How the threads of a block share a strip of rows.
//
// `parts` of K have been counted apart: its slabs, or more of them where the product counts (`for_scales`).
// `makes_up`: see split.cu.
template <typename Source_, int planes_, bool mn_major_, Access access_, int rows_, int slabs_, bool finds_extents_,
          bool makes_up_, int parts_ = slabs_, bool for_scales_ = false>
struct Strip {
  using Source = Source_;
  static constexpr int planes = planes_;
  static constexpr bool mn_major = mn_major_;
  static constexpr Access access = access_;
  static constexpr int rows = rows_, slabs = slabs_, parts = parts_;
  static constexpr bool finds_extents = finds_extents_;
  static constexpr bool makes_up = makes_up_;
  static constexpr bool for_scales = for_scales_;
  static constexpr int lanes = mn_major ? rows / vector : plan::threads / rows;  // side by side along a line
  static constexpr int lines = plan::threads / lanes;                            // at once
  static constexpr int step = mn_major ? lines : lanes * vector;                 // along K
  static constexpr int at_once = 4;                                              // steps whose values are under way
  static constexpr int own_rows = mn_major ? vector : 1;                         // of a thread
  static constexpr int samples = mn_major ? lines : lanes < 32 ? lanes : 32;     // of a row
  static_assert(rows <= most_rows && lanes * lines == plan::threads);
};

}  // namespace tilesmith
