// A few columns of a tile of results in shared memory, on their way to the output.
#pragma once

#include "tile.cuh"

namespace tilesmith {

// `columns_` columns of a tile. Its lines are contiguous in the output: they are rows of the chunk or, if the output is
// stored transposed (along_m), columns. The warpgroup stages its 64 rows together, or each warp its own 16. `padded`:
// whole lines, with gaps that keep them in different banks. Otherwise boxes as TMA reads them.
template <typename Output, int columns_, bool along_m, bool by_warp, bool padded>
struct StagedChunk {
  static constexpr int columns = columns_;
  static constexpr bool is_along_m = along_m;
  static constexpr int rows = by_warp ? 16 : wgmma_m;
  static constexpr int length = along_m ? rows : columns;  // elements of a line
  static constexpr int max_line = 128 / sizeof(Output);
  static constexpr int line = length < max_line ? length : max_line;  // elements of it in one box
  static constexpr int line_bytes = line * sizeof(Output);
  static constexpr int lines = along_m ? columns : rows;
  static constexpr int boxes = length / line;  // side by side
  static constexpr int box_bytes = lines * line_bytes;
  static constexpr int pitch = length * sizeof(Output) + (sizeof(Output) == 4 ? 32 : 16);  // of padded lines
  static constexpr int bytes = padded ? lines * pitch : boxes * box_bytes;
  static_assert(!(along_m && by_warp) && boxes * line == length);
  static_assert(line_bytes == 16 || line_bytes == 32 || line_bytes == 64 || line_bytes == 128);
  static_assert(box_bytes % 128 == 0);

  // The first row of a warp.
  static __device__ __forceinline__ int first_row(int warp) { return by_warp ? 0 : warp * 16; }

  // The address of an element of a line in a chunk that is staged at `chunk`.
  static __device__ __forceinline__ unsigned address(unsigned chunk, int which_line, int at) {
    if constexpr (padded)
      return chunk + which_line * pitch + at * static_cast<int>(sizeof(Output));
    return swizzled<line_bytes>(chunk + at / line * box_bytes + which_line * line_bytes +
                                at % line * static_cast<int>(sizeof(Output)));
  }
  static __device__ __forceinline__ unsigned address_of(unsigned chunk, int m, int n) {
    return along_m ? address(chunk, n, m) : address(chunk, m, n);
  }
};

}  // namespace tilesmith
