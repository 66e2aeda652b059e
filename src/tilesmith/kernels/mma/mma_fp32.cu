// C = A B of float32 by the products that a warp of the tensor cores has in its registers, for operands that are sums
// of 16-bit terms, scaled or not: see fp32_split/split.cu. The block's work is that of mma_large.cu. Of two launches,
// one for ordinary values and one for all others, the range statistics decide which one multiplies: the first one reads
// them while its first tiles come, and leaves the range check to the second.
//
// A stage of the ring has all terms of its tiles.
//
// The translation unit defines the constants in namespace plan before it includes this file, and a header of parts/:
// the class Products, whose `total` is the sum of the products that count when it has `run`, and find_special.

#include "batch.cuh"
#include "kernels/fp32_split/range_check.cuh"
#include "kernels/fp32_split/scales.cuh"
#include "kernels/mma/finish.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

static_assert(plan::terms == 2 || !plan::with_least_product, "of others, no product of the last ones counts");

// What the range statistics of all blocks that split say. Half of the threads, or all in turn, read those of an
// operand.
__device__ __forceinline__ RangeCheck check_range(const Parameters& p) {
  constexpr int readers = 128;
  static_assert(plan::threads % readers == 0);
  __shared__ PartCounts<readers> counts[2];
  const auto total = [&](int operand) {
    return total_of_parts<readers>(counts[operand], operand == 0 ? p.a_range_stats : p.b_range_stats,
                                   operand == 0 ? p.a_range_stats_count : p.b_range_stats_count,
                                   operand == 0 ? p.a_k_chunks : p.b_k_chunks, threadIdx.x % readers,
                                   [] { __syncthreads(); });
  };
  if constexpr (plan::threads == readers) {
    const RangeStats of_a = total(0);
    return range_check(of_a, total(1), p.depth);
  } else {
    total(threadIdx.x / readers % 2);
    return range_check(counts[0].sum, counts[1].sum, p.depth);
  }
}

// Undoes the scales of a lane's sums. Past the last row and column of a matrix there are scales that mean nothing.
__device__ __forceinline__ void undo_scales(const Parameters& p, const BlockTile& tile, const BatchIndex& batch,
                                            Sums& sum) {
  const Share own(threadIdx.x);
  const int* const rows = scales_of(p.a_scales, batch) + tile.first_m + own.first_m_of_warp() + own.lane / 4;
  const int* const columns = scales_of(p.b_scales, batch) + tile.first_n + own.first_n_of_warp() + own.lane % 4 * 2;
  int of_columns[mmas_n][2];
#pragma unroll
  for (int j = 0; j < 2 * mmas_n; ++j) of_columns[j / 2][j % 2] = columns[j / 2 * 8 + j % 2];
#pragma unroll
  for (int i = 0; i < mmas_m; ++i) {
    const int of_rows[2] = {rows[16 * i], rows[16 * i + 8]};
#pragma unroll
    for (int j = 0; j < mmas_n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sum[i][j][e] = unscaled<plan::scale>(sum[i][j][e], of_rows[e / 2], of_columns[j][e % 2]);
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma_fp32(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  constexpr bool is_full_range = plan::scale == Scale::exponents;
  bool special = false;
  if constexpr (is_full_range) {
    const RangeCheck check = *p.range_check;
    if (check == RangeCheck::in_range)
      return;
    special = check == RangeCheck::special;
  }

  const int first_k = blockIdx.z * p.part_k, k = min(p.k - first_k, p.part_k);
  const BlockTile tile = BlockTile::own(p);
  const BatchIndex batch = BatchIndex::of(tile.matrix, p.batch);
  const Element* a = p.a + first_k * p.a_stride_k;
  const Element* b = p.b + first_k * p.b_stride_k;
#pragma unroll
  for (int d = 0; d < max_batch_dims; ++d) {
    a += batch.at[d] * p.a_batch_strides[d];
    b += batch.at[d] * p.b_batch_strides[d];
  }
  const unsigned ring = ptx::shared_address(shared_bytes);
  Sums found = {};
  if (special)
    find_special(found, p, a, b, tile, ring, k);
  Products products(p, a, b, tile, ring, k, found);
  if constexpr (!is_full_range) {
    const RangeCheck check = check_range(p);
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0)
      *p.range_check = check;
    if (check != RangeCheck::in_range) {
      ptx::copy_wait<0>();
      return;
    }
  }
  products.run();

  const BlockTile own = BlockTile::own(p);
  undo_scales(p, own, BatchIndex::of(own.matrix, p.batch), products.total);
  finish(p, own, shared_bytes, products.total);
}

}  // namespace tilesmith
