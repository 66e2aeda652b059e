// Splits float32 operands into terms of 16-bit numbers whose sum they are, scaled by a power of two for each row
// (for B: for each column). One launch serves both operands of a product, or the one that is not packed.
//
//   plan::full_range false   float16 terms, two of them (or one): enough for ordinary values. Range statistics tell
//                            whether these are ordinary. Of 16-bit numbers one term is enough.
//   plan::full_range true    bfloat16 terms, three for all of float32's bits, and for values of any size; and, if there
//                            are infinities or NaNs, one more that tells them from other numbers. Runs only where the
//                            others do not do.
//
// The terms have the layout of the operand: they are made of lines that run along K (K-major) or along the rows
// (MN-major), and lie one behind the other along K.
//
// Every value is read once. So the scale comes from a sample of the row: it need not be the best one, since values up
// to 2^6 times the largest of the sample fit, and the range statistics see whether they do.
//
// Tensor cores cut off what does not fit, so every sum of theirs is too small, by 2^-23 of itself on average. The
// factors that undo the scales make up for that: those of one operand (`corrects_bias`) are larger by as much. Not
// those of rows whose sample has no more than 16 bits: sums of such numbers, as of integers, may be exact, and then
// stay so.
//
// A block takes a few rows and all of K. Where K is long it is cut into K chunks, with blocks of their own, which count
// for themselves.

#include "kernels/fp32_split/range_check.cuh"
#include "kernels/fp32_split/task.cuh"
#include "kernels/fp32_split/types.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

using KindOfA = Kind<plan::a::Source, plan::a::terms, plan::a::mn_major, plan::a::access>;
using KindOfB = Kind<plan::b::Source, plan::b::terms, plan::b::mn_major, plan::b::access>;

// `only_scales`: the product makes its own terms.
template <typename Kind, bool only_scales = false>
__device__ __forceinline__ void split_operand(const Operand& o, Shared& shared, bool special) {
  if (!plan::full_range && threadIdx.x == 0)
    shared.range_stats = RangeStats::none();
  // Of all blocks, those come first that had fewer tasks of the other operand.
  const unsigned block =
      blockIdx.x < o.first_block ? blockIdx.x + gridDim.x - o.first_block : blockIdx.x - o.first_block;
  int parity = 0;
  const int k_chunk = block & ((1 << o.log2_k_chunks) - 1);
  for (unsigned task = block >> o.log2_k_chunks; task < o.tasks; task += gridDim.x >> o.log2_k_chunks) {
    Task<Kind> row_block(o, task, k_chunk);
    if constexpr (plan::full_range && only_scales)
      row_block.run_for_full_range_scales();
    else if constexpr (plan::full_range)
      row_block.run_full_range(special);
    else if constexpr (only_scales)
      row_block.run_for_scales(shared, parity);
    else
      row_block.run(shared, parity);
    parity ^= 1;
  }
  if constexpr (!plan::full_range && !only_scales) {
    __syncthreads();
    if (threadIdx.x == 0)
      o.range_stats[block] = shared.range_stats;
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    split(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  bool special = false;
  if constexpr (plan::full_range) {
    if (*p.range_check == RangeCheck::in_range)
      return;
    special = *p.range_check == RangeCheck::special;
  } else if constexpr (plan::a_is_rs) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
      reinterpret_cast<CountedCheck*>(p.range_check)->arrived = 0;
  }
  split_operand<KindOfA, plan::a_is_rs>(p.operands[0], shared, special);
  if (p.count > 1)
    split_operand<KindOfB>(p.operands[1], shared, special);
}

}  // namespace tilesmith
