// The 16-bit residual of a tile, on its way to the threads that have the sums.
//
// Such a thread has two neighbours of a row, and a warp eight rows: to read a residual like that takes a look-up in the
// cache for every 16 bytes. So a warp reads lines of its rows, a few columns at a time, and its threads find theirs in
// shared memory.
#pragma once

#include "ptx/global.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "vector.cuh"

namespace tilesmith {

// What is read and staged at once: one or eight elements of a line.
template <int elements>
struct Bits16;
template <>
struct Bits16<1> {
  using type = unsigned short;
};
template <>
struct Bits16<8> {
  using type = Vector<unsigned, 4>;
};

// The rows that a warp has of a residual, as far as they are inside of it. They are staged as a chunk is.
// `has_registers`: there are as many as a chunk needs, even if every element has one.
template <typename Residual, typename Chunk, int vector, bool has_registers>
class ResidualRows {
  using Bits = typename Bits16<vector>::type;
  static constexpr int max_columns = vector == 8 || has_registers ? 64 : 32;

 public:
  static constexpr int columns = Chunk::length < max_columns ? Chunk::length : max_columns;  // that are read at once

 private:
  static constexpr int rows = 16;
  static constexpr int per_line = columns / vector;
  static constexpr int own = (rows * per_line + 31) / 32;  // of a thread

  const Residual* first_;
  long long stride_;
  int rows_, columns_;
  int lane_ = threadIdx.x % 32;
  Bits read_[own];

  __device__ __forceinline__ int row(int i) const { return (i * 32 + lane_) / per_line; }
  __device__ __forceinline__ int column(int i) const { return (i * 32 + lane_) % per_line * vector; }

 public:
  __device__ __forceinline__ ResidualRows(const Residual* first, long long stride, int rows_left, int columns_left)
      : first_(first), stride_(stride), rows_(min(rows, rows_left)), columns_(columns_left) {}

  // Has L2 read the first columns of all rows.
  template <int first_columns>
  __device__ __forceinline__ void prefetch() const {
    constexpr int line = 128 / sizeof(Residual), lines = (first_columns + line - 1) / line;
#pragma unroll
    for (int i = 0; i < (rows * lines + 31) / 32; ++i) {
      const int m = (i * 32 + lane_) / lines, n = (i * 32 + lane_) % lines * line;
      if (m < rows_ && n < columns_)
        ptx::prefetch_to_l2(first_ + m * stride_ + n);
    }
  }

  // Starts to read the columns from `first_column` on.
  __device__ __forceinline__ void read(int first_column) {
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const int n = first_column + column(i);
      read_[i] = {};
      if (row(i) < rows_ && n < columns_)
        read_[i] = *reinterpret_cast<const Bits*>(first_ + row(i) * stride_ + n);
    }
  }

  // Stages what was read, from this line of a chunk on.
  __device__ __forceinline__ void stage(unsigned chunk, int first_line) const {
#pragma unroll
    for (int i = 0; i < own; ++i)
      if (own * 32 == rows * per_line || row(i) < rows)
        ptx::shared_store(Chunk::address(chunk, first_line + row(i), column(i)), read_[i]);
  }

  // Of what is staged, two neighbours of a row: the j-th pair of columns of this thread, in its row h.
  static __device__ __forceinline__ Vector<Residual, 2> pair(unsigned chunk, int first_line, int j, int h) {
    const int lane = threadIdx.x % 32;
    const unsigned bits = ptx::shared_load(Chunk::address(chunk, first_line + lane / 4 + 8 * h, 8 * j + lane % 4 * 2));
    return {Residual{static_cast<unsigned short>(bits)}, Residual{static_cast<unsigned short>(bits >> 16)}};
  }
};

}  // namespace tilesmith
