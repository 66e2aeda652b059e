// What a thread holds of a tile, and a few columns of it in shared memory, on their way to the output.
#pragma once

#include "element.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"

namespace tilesmith {

template <typename Output>
__device__ __forceinline__ unsigned narrow_pair(float low, float high);
template <>
__device__ __forceinline__ unsigned narrow_pair<float16>(float low, float high) {
  return ptx::float_to_half_pair(low, high);
}
template <>
__device__ __forceinline__ unsigned narrow_pair<bfloat16>(float low, float high) {
  return ptx::float_to_bfloat16_pair(low, high);
}

// What a thread holds of a tile, in the output's type. The thread of a warp has in element
// 4 j + 2 h + e the value of row lane / 4 + 8 h of the warp's rows and column 8 j + 2 (lane % 4) + e.
template <typename Output, int elements>
struct Fragment {
  unsigned pairs[elements / 2];

  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements / 2; ++i) pairs[i] = narrow_pair<Output>(sum[2 * i], sum[2 * i + 1]);
  }
};
template <int elements>
struct Fragment<float, elements> {
  float values[elements];

  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i];
  }
  __device__ __forceinline__ void add(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] += sum[i];
  }
  __device__ __forceinline__ void add_to(float (&sum)[elements]) const {
#pragma unroll
    for (int i = 0; i < elements; ++i) sum[i] += values[i];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = 0.0f;
  }
  // The infinities and NaNs of the sums, and zeros for all others.
  __device__ __forceinline__ void take_special(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i] - sum[i] == 0.0f ? 0.0f : sum[i];
  }
};

// `columns` columns of a tile in shared memory. Its lines are contiguous in the output: they are rows of
// the chunk or, if the output is stored transposed (along_m), columns. The warpgroup stages its 64 rows
// together, or each warp its own 16. `padded`: whole lines, with gaps that keep them in different banks. Otherwise
// boxes as TMA reads them.
template <typename Output, int columns, bool along_m, bool by_warp, bool padded>
struct StagedChunk {
  static constexpr bool wide = sizeof(Output) == 4;
  static constexpr int rows = by_warp ? 16 : wgmma_m;
  static constexpr int length = along_m ? rows : columns;  // elements of a line
  static constexpr int max_line = 128 / sizeof(Output);
  static constexpr int line = length < max_line ? length : max_line;  // elements of it in one box
  static constexpr int line_bytes = line * sizeof(Output);
  static constexpr int lines = along_m ? columns : rows;
  static constexpr int boxes = length / line;  // side by side
  static constexpr int box_bytes = lines * line_bytes;
  static constexpr int pitch = length * sizeof(Output) + (wide ? 32 : 16);  // of padded lines
  static constexpr int bytes = padded ? lines * pitch : boxes * box_bytes;
  static_assert(!(along_m && by_warp) && boxes * line == length);
  static_assert(line_bytes == 16 || line_bytes == 32 || line_bytes == 64 || line_bytes == 128);
  static_assert(box_bytes % 128 == 0);

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

  // Stages the columns from `first` on of the fragment.
  template <int first, int elements>
  static __device__ __forceinline__ void write(unsigned chunk, const Fragment<Output, elements>& fragment, int warp,
                                               int lane) {
    const int warp_row = by_warp ? 0 : warp * 16;
    if constexpr (wide) {
      const float* values = fragment.values + first / 2;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int m = warp_row + lane / 4 + 8 * h;
          const int n = 8 * j + lane % 4 * 2;
          const float x = values[4 * j + 2 * h], y = values[4 * j + 2 * h + 1];
          if constexpr (along_m) {
            ptx::shared_store(address_of(chunk, m, n), x);
            ptx::shared_store(address_of(chunk, m, n + 1), y);
          } else {
            ptx::shared_store(address_of(chunk, m, n), x, y);
          }
        }
    } else {
      const unsigned* pairs = fragment.pairs + first / 4;
      // The lane's row of one of the 8x8 matrices: its element that comes first in memory.
      const int m = warp_row + lane / 8 % 2 * 8 + (along_m ? 0 : lane % 8);
      const int n = lane / 16 * 8 + (along_m ? lane % 8 : 0);
      if constexpr (columns % 16 == 0) {
#pragma unroll
        for (int g = 0; g < columns / 16; ++g) {
          const unsigned* x = pairs + 4 * g;
          const unsigned at = address_of(chunk, m, n + 16 * g);
          if constexpr (along_m)
            ptx::store_matrices_transposed(at, x[0], x[1], x[2], x[3]);
          else
            ptx::store_matrices(at, x[0], x[1], x[2], x[3]);
        }
      } else {
        static_assert(columns == 8);
        const unsigned at = address_of(chunk, m, n % 8);
        if constexpr (along_m)
          ptx::store_matrices_transposed(at, pairs[0], pairs[1]);
        else
          ptx::store_matrices(at, pairs[0], pairs[1]);
      }
    }
  }
};

}  // namespace tilesmith
