// From a block's sums to what it stores: parts of K that warps have are added, then the epilogue, or partial sums as
// they are.
#pragma once

#include "kernels/mma/block_tile.cuh"
#include "kernels/mma/results.cuh"
#include "kernels/whole_epilogue.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

using OwnEpilogue = WholeEpilogue<Output, max_batch_dims>;

// What warps exchange takes the place of the ring.
static_assert(plan::warps_k == 1 || (sizeof(PartsOfK) <= plan::shared_bytes && share % 2 == 0));
static_assert(sizeof(Results) <= plan::shared_bytes);

// Sums of doubles change places as they are, and get their epilogue then. In registers, where there may be 64 of a
// lane's, its long functions would be most of what there is to compile.
constexpr bool has_epilogue_in_shared = has_epilogue && sizeof(Sum) == sizeof(double) && sizeof(Output) == sizeof(Sum);

// `sums`: whose first one is that of the row and the column, and goes to `out`.
__device__ __forceinline__ void store_with_epilogue(const Results& sums, const OwnEpilogue& epilogue, Output* out,
                                                    int first_m, int first_n, const Parameters& p) {
  constexpr int of_thread = turn_rows * plan::tile_n / plan::threads, at_once = of_thread < 8 ? of_thread : 8;
  constexpr int step = plan::threads / plan::tile_n;  // of rows
  static_assert(of_thread % at_once == 0);
  const int first_row = threadIdx.x / plan::tile_n, column = threadIdx.x % plan::tile_n;
#pragma unroll 1
  for (int first = 0; first < of_thread; first += at_once) {
    OwnEpilogue::Value found[at_once], results[at_once];
    OwnEpilogue::Addends addends[at_once];
    const int row = first_row + first * step;
    const auto is_inside = [&](int i) { return first_m + row + i * step < p.m && first_n + column < p.n; };
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      addends[i] = epilogue.addends(first_m + row + i * step, first_n + column, is_inside(i));
      found[i] = widen<OwnEpilogue::Value>(sums[row + i * step][column]);
    }
    epilogue.of_all<1>(results, found, addends);
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (is_inside(i))
        out[(row + i * step) * p.out_stride_m + column * p.out_stride_n] = narrow<Output>(results[i]);
  }
}

// `sum`: a lane's, of the tile. `shared`: all of a block's, of which nothing is needed any more. What it needs besides
// is found out only now: until here, registers are scarce.
__device__ __forceinline__ void finish(const Parameters& p, const BlockTile& tile, unsigned char* shared,
                                       const Sum (&sum)[mmas_m][mmas_n][4]) {
  const Share own(ptx::forgotten(threadIdx.x));
  long long out_offset = 0;
  OwnEpilogue epilogue(p.epilogue);
  if (const int matrix = ptx::forgotten(tile.matrix); matrix > 0) {
    const BatchIndex index = BatchIndex::of(matrix, p.batch);
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) out_offset += index.at[d] * p.out_batch_strides[d];
    epilogue.move_to(index.at);
  }
  Sum ordered[sums], total[share];
#pragma unroll
  for (int i = 0; i < sums; ++i) ordered[i] = sum[Share::mma_m(i)][Share::mma_n(i)][Share::of_mma(i)];
  add_parts(total, ordered, reinterpret_cast<PartsOfK&>(*shared), own.warp_k, own.warp_tile, own.lane);

  const auto row_of = [&](int i) { return own.row(i); };
  const auto column_of = [&](int i) { return own.column(i); };
  const int first_m = tile.first_m, first_n = tile.first_n;
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

  using Value = OwnEpilogue::Value;
  Value values[share];
  if (has_epilogue_in_shared || epilogue.is_none()) {
#pragma unroll
    for (int i = 0; i < share; ++i) values[i] = static_cast<Value>(total[i]);
  } else if constexpr (has_epilogue) {
    // What is added to some of them is read before the first one is computed: the reads wait for memory together. With
    // doubles there are fewer registers for that.
    constexpr int some = share > 16 ? 64 / sizeof(Sum) : share;
    constexpr int at_once = some > 8 ? mmas_n : some;  // few need no turns
#pragma unroll
    for (int first = 0; first < share; first += some) {
      Sum some_sums[some];
      Value some_values[some];
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
  using Group = Vector<Output, neighbours>;
  Group results[share / neighbours];
#pragma unroll
  for (int i = 0; i < share; ++i) results[i / neighbours].element[i % neighbours] = narrow<Output>(values[i]);

  if (stores_from_registers && p.stores_vectors && (!has_epilogue_in_shared || epilogue.is_none())) {
#pragma unroll
    for (int i = 0; i < share; i += neighbours)
      if (is_inside(i))
        *reinterpret_cast<Group*>(out + row_of(i) * p.out_stride_m + column_of(i)) = results[i / neighbours];
    return;
  }
  // A lane would store its results one by one. In shared memory they change places: neighbours store neighbours.
  Results& exchanged = reinterpret_cast<Results&>(*shared);
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const int first_row = turn * turn_rows;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < share; i += neighbours) {
      const int row = row_of(i) - first_row;
      if (turns == 1 || (row >= 0 && row < turn_rows))
        *reinterpret_cast<Group*>(&exchanged[row][column_of(i)]) = results[i / neighbours];
    }
    __syncthreads();
    Output* const lines = out + first_row * p.out_stride_m;
    if constexpr (has_epilogue_in_shared) {
      if (!epilogue.is_none()) {
        store_with_epilogue(exchanged, epilogue, lines, first_m + first_row, first_n, p);
        continue;
      }
    }
    if (!stores_from_registers && p.stores_vectors)
      store_vectors(exchanged, lines, rows - first_row, columns, p);
    else if (sizeof(Output) == 2 && p.out_stride_n == 1)
      store_pairs(exchanged, lines, rows - first_row, columns, p);
    else
      store(exchanged, lines, rows - first_row, columns, p);
  }
}

}  // namespace tilesmith
