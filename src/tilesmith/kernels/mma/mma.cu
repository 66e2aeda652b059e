// C = A B by the products that a warp of the tensor cores has in its registers. float32: of doubles, where products are
// exact, sums are of doubles and a result is rounded once; or of TF32, with sums of float32. 16 bits, with sums of
// float32.
//
// A block computes a tile of C. Tiles of A and B pass through a ring in shared memory. The warps divide the tile, and
// K; what they have of K is added at the end, in order. Which k of the product instruction is which of K does not
// matter as long as both operands agree: a lane takes four neighbours. So it is with rows and columns, see group_of.
//
// Where tiles are few, K is cut into parts, of blocks next to each other in the grid's third dimension. These store
// their sums, and leave the rest to split_k_reduce.
//
// The translation unit defines the constants in namespace plan before it includes this file.

#include "batch.cuh"
#include "kernels/mma/arithmetic.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "kernels/mma/results.cuh"
#include "kernels/whole_epilogue.cuh"
#include "ptx/grid.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

using plan::Element;
using Own = Arithmetic<Element, Sum>;
using OwnEpilogue = WholeEpilogue<Output, max_batch_dims>;
using TileOfA =
    CopiedTile<Element, plan::tile_m, plan::tile_k, 2 * mmas_m, plan::threads, plan::a_along_k, plan::a_copy_bytes>;
using TileOfB =
    CopiedTile<Element, plan::tile_n, plan::tile_k, mmas_n, plan::threads, plan::b_along_k, plan::b_copy_bytes>;
constexpr bool is_held = TileOfA::is_held || TileOfB::is_held;
constexpr int steps_ahead = is_held ? 2 : plan::stages - 1;  // of the copies; registers hold one step
static_assert(steps_ahead < plan::stages);

constexpr int k_round = plan::mma_k * plan::warps_k;  // of K that all warps multiply at once
static_assert(plan::tile_k % k_round == 0);

struct RingStage {
  Element a[TileOfA::elements];
  Element b[TileOfB::elements];
};
struct Shared {
  RingStage ring[plan::stages];
};
static_assert(sizeof(Shared) == plan::shared_bytes);

// What warps exchange takes the place of the ring.
static_assert(plan::warps_k == 1 || (sizeof(PartsOfK) <= sizeof(Shared) && share % 2 == 0));
static_assert(sizeof(Results) <= sizeof(Shared));

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  ptx::grid_launch_dependents();

  const int first_k = blockIdx.z * p.part_k, k = min(p.k - first_k, p.part_k);
  const Element* a = p.a + first_k * p.a_stride_k;
  const Element* b = p.b + first_k * p.b_stride_k;
  int tile_n = blockIdx.x;
  if (tile_n >= p.tiles_n) {
    const int matrix = blockIdx.x / p.tiles_n;
    tile_n -= matrix * p.tiles_n;
    const BatchIndex index = BatchIndex::of(matrix, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      a += index.at[d] * p.a_batch_strides[d];
      b += index.at[d] * p.b_batch_strides[d];
    }
  }
  const int first_m = blockIdx.y * plan::tile_m;
  const int first_n = tile_n * plan::tile_n;
  TileOfA a_tile(a, first_m, p.m, p.a_stride_m, p.a_stride_k);
  TileOfB b_tile(b, first_n, p.n, p.b_stride_n, p.b_stride_k);
  const auto after = [&](RingStage* stage) {
    return stage == &shared.ring[plan::stages - 1] ? &shared.ring[0] : stage + 1;
  };
  const auto before = [&](RingStage* stage) {
    return stage == &shared.ring[0] ? &shared.ring[plan::stages - 1] : stage - 1;
  };
  const auto start = [&](RingStage* stage, int k_left) {
    if (k_left > 0) {
      a_tile.start(stage->a, k_left);
      b_tile.start(stage->b, k_left);
    }
    ptx::copy_commit();
  };
  // Stores what registers hold of the step that was started last.
  const auto put = [&](RingStage* stage) {
    a_tile.put(stage->a);
    b_tile.put(stage->b);
  };

  ptx::grid_dependency_wait();
  start(&shared.ring[0], k);
  if constexpr (is_held)
    put(&shared.ring[0]);
#pragma unroll 1
  for (int i = 1; i < steps_ahead; ++i) start(&shared.ring[i], k - i * plan::tile_k);

  const Share reader(threadIdx.x);
  const int warp_k = reader.warp_k;
  const int own_k = warp_k * plan::mma_k + reader.lane % 4 * lane_k;
  const unsigned own_a = TileOfA::place(reader.first_m(), own_k);
  const unsigned own_b = TileOfB::place(reader.first_n_of_warp() + group_of(reader.lane / 4) * mmas_n, own_k);

  Sum sum[mmas_m][mmas_n][4] = {};
  RingStage* stage = &shared.ring[0];
#pragma unroll 1
  for (int k_left = k; k_left > 0; k_left -= plan::tile_k) {
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

  // What follows is found out only now: until here, registers are scarce.
  const Share own(ptx::forgotten(threadIdx.x));
  long long out_offset = 0;
  OwnEpilogue epilogue(p.epilogue);
  if (const int block = ptx::forgotten(blockIdx.x); block >= p.tiles_n) {
    const BatchIndex index = BatchIndex::of(block / p.tiles_n, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) out_offset += index.at[d] * p.out_batch_strides[d];
    epilogue.move_to(index.at);
  }
  Sum ordered[sums], total[share];
#pragma unroll
  for (int i = 0; i < sums; ++i) ordered[i] = sum[i / (4 * mmas_n)][i % mmas_n][i / mmas_n % 4];
  add_parts(total, ordered, reinterpret_cast<PartsOfK&>(shared), own.warp_k, own.warp_tile, own.lane);

  const auto row_of = [&](int i) { return own.first_m() + own.group(i) / 2; };
  const auto column_of = [&](int i) { return own.first_column(i) + i % mmas_n; };
  const int rows = p.m - first_m, columns = p.n - first_n;  // that are inside of the output
  const auto is_inside = [&](int i) { return row_of(i) < rows && column_of(i) < columns; };
  out_offset += first_m * p.out_stride_m + first_n * p.out_stride_n;

  if (p.out_is_partial) {
    plan::Partial* const partial = static_cast<plan::Partial*>(p.out) + out_offset + blockIdx.z * p.out_part_stride;
#pragma unroll
    for (int i = 0; i < share; ++i)
      if (is_inside(i))
        partial[row_of(i) * p.out_stride_m + column_of(i) * p.out_stride_n] = total[i];
    return;
  }
  Output* const out = static_cast<Output*>(p.out) + out_offset;

  float values[share];
  if (epilogue.is_none()) {
#pragma unroll
    for (int i = 0; i < share; ++i) values[i] = static_cast<float>(total[i]);
  } else {
    // What is added to some of them is read before the first one is computed: the reads wait for memory together. With
    // doubles there are fewer registers for that.
    constexpr int some = share > 16 ? 64 / sizeof(Sum) : share;
    constexpr int at_once = some > 8 ? mmas_n : some;  // few need no turns
#pragma unroll
    for (int first = 0; first < share; first += some) {
      Sum some_sums[some];
      float some_values[some];
      OwnEpilogue::Addends addends[some];
#pragma unroll
      for (int i = 0; i < some; ++i) {
        const int row = first_m + row_of(first + i), column = first_n + column_of(first + i);
        addends[i] = epilogue.addends(row, column, is_inside(first + i));
        some_sums[i] = total[first + i];
      }
      epilogue.of_all<at_once>(some_values, some_sums, addends);
#pragma unroll
      for (int i = 0; i < some; ++i) values[first + i] = some_values[i];
    }
  }
  using Group = Vector<Output, mmas_n>;
  Group results[share / mmas_n];
#pragma unroll
  for (int i = 0; i < share; ++i) results[i / mmas_n].element[i % mmas_n] = narrow<Output>(values[i]);

  if (p.stores_groups) {
#pragma unroll
    for (int i = 0; i < share; i += mmas_n)
      if (is_inside(i))
        *reinterpret_cast<Group*>(out + row_of(i) * p.out_stride_m + column_of(i)) = results[i / mmas_n];
    return;
  }
  // A lane would store its results one by one. In shared memory they change places: neighbours store neighbours.
  Results& exchanged = reinterpret_cast<Results&>(shared);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < share; i += mmas_n)
    *reinterpret_cast<Group*>(&exchanged[row_of(i)][column_of(i)]) = results[i / mmas_n];
  __syncthreads();
  if (sizeof(Output) == 2 && p.out_stride_n == 1)
    store_pairs(exchanged, out, rows, columns, p);
  else
    store(exchanged, out, rows, columns, p);
}

}  // namespace tilesmith
