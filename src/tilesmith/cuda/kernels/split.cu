// Splits float32 operands into planes of 16-bit numbers whose sum they are, scaled by a power of two for each row
// (for B: for each column). One launch serves both operands of a product, or the one that is not packed.
//
//   plan::wide false   float16 planes, two of them (or one): enough for ordinary values. A census tells whether
//                      these are ordinary. Of 16-bit numbers one plane is enough.
//   plan::wide true    bfloat16 planes, three for all of float32's bits, and for values of any size; and, if there are
//                      infinities or NaNs, one more that tells them from other numbers. Runs only where the others do
//                      not do.
//
// The planes have the layout of the operand: they are made of lines that run along K (K-major) or along the rows
// (MN-major), and lie one behind the other along K.
//
// Every value is read once. So the scale comes from a sample of the row: it need not be the best one, since values up
// to 2^6 times the largest of the sample fit, and the census sees whether they do.
//
// Tensor cores cut off what does not fit, so every sum of theirs is too small, by 2^-23 of itself on average. The
// factors that undo the scales make up for that: those of one operand (`makes_up`) are larger by as much. Not those of
// rows whose sample has no more than 16 bits: sums of such numbers, as of integers, may be exact, and then stay so.
//
// A block takes a few rows and all of K. Where K is long it is cut into slabs, with blocks of their own, which count
// for themselves.

#include "census.cuh"
#include "kernels/split/task.cuh"
#include "kernels/split/types.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

template <typename Strip>
__device__ __forceinline__ void split_operand(const Operand& o, Shared& shared, bool special) {
  if (!plan::wide && threadIdx.x == 0)
    shared.census = Census::none();
  // Of all blocks, those come first that had fewer tasks of the other operand.
  const unsigned block =
      blockIdx.x < o.first_block ? blockIdx.x + gridDim.x - o.first_block : blockIdx.x - o.first_block;
  int parity = 0;
  for (unsigned task = block / Strip::slabs; task < o.tasks; task += gridDim.x / Strip::slabs) {
    Task<Strip> strip(o, task, block % Strip::slabs);
    if constexpr (plan::wide && Strip::for_scales)
      strip.run_for_wide_scales();
    else if constexpr (plan::wide)
      strip.run_wide(special);
    else if constexpr (Strip::for_scales)
      strip.run_for_scales(shared, parity);
    else
      strip.run(shared, parity);
    parity ^= 1;
  }
  if constexpr (!plan::wide && !Strip::for_scales) {
    __syncthreads();
    if (threadIdx.x == 0)
      o.censuses[block] = shared.census;
    __syncthreads();
  }
}

// Every block finds the verdict itself, and leaves it to the next launch.
__device__ __forceinline__ void judge(const Parameters& p) {
  __shared__ PartCounts<plan::a_parts> counts;
  const Census a = total_of_parts<plan::threads>(counts, p.operands[0].censuses, p.row_groups);
  const Census b = total<plan::b_slabs>(p.operands[plan::operands - 1].censuses, p.b_census_count);
  if (threadIdx.x == 0) {
    const Verdict found = verdict(a, b, p.operands[0].depth);
    *p.verdict = found == Verdict::planes_suffice && needs_wide(b) ? Verdict::wide : found;
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    split(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  bool special = false;
  if constexpr (plan::wide) {
    if constexpr (plan::a_is_raw)
      judge(p);
    if (*p.verdict == Verdict::planes_suffice)
      return;
    special = *p.verdict == Verdict::special;
  }
  split_operand<
      Strip<plan::a_source, plan::a_planes, plan::a_mn_major, static_cast<Access>(plan::a_access), plan::a_rows,
            plan::a_slabs, plan::finds_extents, plan::a_makes_up, plan::a_parts, plan::a_is_raw>>(p.operands[0], shared,
                                                                                                  special);
  if constexpr (plan::operands > 1)
    split_operand<Strip<plan::b_source, plan::b_planes, plan::b_mn_major, static_cast<Access>(plan::b_access),
                        plan::b_rows, plan::b_slabs, plan::finds_extents, plan::b_makes_up>>(
        p.operands[plan::operands - 1], shared, special);
}

}  // namespace tilesmith
