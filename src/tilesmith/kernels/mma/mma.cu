// C = A B by the products that a warp of the tensor cores has in its registers. float64. float32: of doubles, where
// products are exact, sums are of doubles and a result is rounded once; or of TF32, with sums of float32. 16 bits, with
// sums of float32.
//
// A block computes a tile of C. Tiles of A and B pass through a ring in shared memory. The warps divide the tile, and
// K; what they have of K is added at the end, in order. Which k of the product instruction is which of K does not
// matter as long as both operands agree: a lane takes four neighbours. So it is with rows and columns, see group_of.
//
// Where tiles are few, K is cut into parts, of blocks next to each other in the grid's third dimension. These store
// their sums, and leave the rest to split_k_reduce.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "kernels/mma/finish.cuh"
#include "kernels/mma/ring.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  ptx::grid_launch_dependents();

  PartOfOperands operands(p);
  const BlockTile tile = BlockTile::own(p);
  operands.move_to(tile.matrix, p);
  TileOfA a_tile(operands.a, tile.first_m, p.m, p.a_stride_m, p.a_stride_k);
  TileOfB b_tile(operands.b, tile.first_n, p.n, p.b_stride_n, p.b_stride_k);
  const auto after = [&](RingStage* stage) {
    return stage == &shared.ring[plan::stages - 1] ? &shared.ring[0] : stage + 1;
  };
  const auto before = [&](RingStage* stage) {
    return stage == &shared.ring[0] ? &shared.ring[plan::stages - 1] : stage - 1;
  };
  const auto start = [&](RingStage* stage, int k_left) {
    if (k_left > 0) {
      a_tile.start(ptx::shared_address(stage->a), k_left);
      b_tile.start(ptx::shared_address(stage->b), k_left);
    }
    if constexpr (!plan::holds_copies)
      ptx::copy_commit();
  };
  // Stores what registers hold of the step that was started last.
  const auto put = [&](RingStage* stage) {
    a_tile.put(stage->a);
    b_tile.put(stage->b);
  };

  ptx::grid_dependency_wait();
  start(&shared.ring[0], operands.k);
  if constexpr (is_held)
    put(&shared.ring[0]);
#pragma unroll 1
  for (int i = 1; i < steps_ahead; ++i) start(&shared.ring[i], operands.k - i * plan::tile_k);

  const Share reader(threadIdx.x);
  const int warp_k = reader.warp_k;
  const int own_k = warp_k * plan::mma_k + reader.lane % 4 * lane_k;
  const unsigned own_a = TileOfA::place(reader.first_m(), own_k);
  const unsigned own_b = TileOfB::place(reader.first_n_of_warp() + group_of(reader.lane / 4) * mmas_n, own_k);

  Sum sum[mmas_m][mmas_n][4] = {};
  RingStage* stage = &shared.ring[0];
#pragma unroll 1
  for (int k_left = operands.k; k_left > 0; k_left -= plan::tile_k) {
    if constexpr (!plan::holds_copies)
      ptx::copy_wait<steps_ahead - 1>();
    __syncthreads();  // the copies of all threads are there, and all have read what is free now
    if constexpr (!is_held)
      start(before(stage), k_left - steps_ahead * plan::tile_k);
    Sum step_sum[mmas_m][mmas_n][4];
    Sum(&found)[mmas_m][mmas_n][4] = Own::cuts_off ? step_sum : sum;
    if constexpr (Own::cuts_off)
#pragma unroll
      for (int i = 0; i < sums; ++i) step_sum[i / (4 * mmas_n)][i / 4 % mmas_n][i % 4] = 0;
#pragma unroll
    for (int in_tile = 0; in_tile < plan::tile_k; in_tile += k_round) {
      if (in_tile + warp_k * plan::mma_k >= k_left)
        break;
      Quad<Element> a_values[2 * mmas_m], b_values[mmas_n];
      TileOfA::read(a_values, stage->a, TileOfA::beyond(own_a, TileOfA::place(0, in_tile)));
      TileOfB::read(b_values, stage->b, TileOfB::beyond(own_b, TileOfB::place(0, in_tile)));
      Own::Factor a_factors[mmas_m][2 * Own::factors];
#pragma unroll
      for (int i = 0; i < mmas_m; ++i)
#pragma unroll
        for (int e = 0; e < 2 * Own::factors; ++e) a_factors[i][e] = Own::factor(a_values[2 * i + e % 2], e / 2);
#pragma unroll
      for (int j = 0; j < mmas_n; ++j) {
        Own::Factor b_factors[Own::factors];
#pragma unroll
        for (int e = 0; e < Own::factors; ++e) b_factors[e] = Own::factor(b_values[j], e);
#pragma unroll
        for (int i = 0; i < mmas_m; ++i) Own::multiply_add(found[i][j], a_factors[i], b_factors);
      }
    }
    // The tensor cores cut off what does not fit into float32. Added here, it is rounded.
    if constexpr (Own::cuts_off)
#pragma unroll
      for (int i = 0; i < sums; ++i) {
        const int m = i / (4 * mmas_n), n = i / 4 % mmas_n, e = i % 4;
        sum[m][n][e] += step_sum[m][n][e];
      }
    stage = after(stage);
    if constexpr (is_held) {
      if (k_left > plan::tile_k)
        put(stage);
      start(after(stage), k_left - steps_ahead * plan::tile_k);
    }
  }

  if constexpr (plan::raster_rows > 1)
    finish(p, BlockTile::own(p), shared_bytes, sum);  // found anew: large tiles leave no registers to keep it
  else
    finish(p, tile, shared_bytes, sum);
}

}  // namespace tilesmith
