// One operand's tile on its way from global through registers to shared memory.
//
// In shared memory a tile is always K rows of `extent` values (rows of A, columns of B), in
// the type of the arithmetic. In global memory it may lie either way and with any strides:
//
//   along K:   a thread's vector runs along K and is scattered over K rows of shared memory
//   across K:  a thread's vector runs along the extent and is stored as it is
//
// A thread's vectors lie a fixed step apart, so that one address serves them all. What is past
// an edge of the matrix is not read: it is zero, in both operands where it is past the end of K,
// so that a NaN on one side meets no product.
#pragma once

#include "element.cuh"

namespace tilesmith {

template <typename Element, typename Accumulator, typename Index, int extent, int depth, int pitch, int threads,
          bool along_k, int vector, bool whole_tiles_apart>
class StagedTile {
  using Loaded = Vector<Element, vector>;
  using Rows = Accumulator (&)[depth][pitch];

  static constexpr int line = (along_k ? depth : extent) / vector;  // vectors side by side
  static constexpr int lines_at_once = threads / line;
  static constexpr int vectors = extent * depth / vector / threads;
  static_assert(line * lines_at_once == threads && vectors * vector * threads == extent * depth);

  const Element* cursor_;  // this thread's first vector of the next tile
  Index step_;             // from one of its vectors to the next
  Index advance_;          // from one tile to the next
  unsigned inside_;        // bit i: its i-th vector is inside the matrix

  Loaded staged_[vectors] = {};

  // Where a thread's i-th vector lies in the tile.
  static __device__ __forceinline__ int in_line() { return static_cast<int>(threadIdx.x) % line * vector; }
  static __device__ __forceinline__ int across(int i) {
    return static_cast<int>(threadIdx.x) / line + i * lines_at_once;
  }
  static __device__ __forceinline__ int k_of(int i) { return along_k ? in_line() : across(i); }
  static __device__ __forceinline__ int mn_of(int i) { return along_k ? across(i) : in_line(); }

 public:
  // The tile whose first row or column is `first`, of a matrix with `size` of them.
  __device__ __forceinline__ StagedTile(const Element* matrix, Index first, Index size, long long stride_mn,
                                        long long stride_k)
      : cursor_(matrix + (first + mn_of(0)) * stride_mn + k_of(0) * stride_k),
        step_(lines_at_once * (along_k ? stride_mn : stride_k)),
        advance_(depth * stride_k),
        inside_(0) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) inside_ |= static_cast<unsigned>(first + mn_of(i) < size) << i;
  }

  // Starts the loads of the next tile along K, which has `k_left` elements before K's end.
  __device__ __forceinline__ void load(Index k_left) {
    if (whole_tiles_apart && k_left >= depth) {
      // Whole tiles write no zeros (5% of the speed): a vector outside of the matrix was zero from the start.
#pragma unroll
      for (int i = 0; i < vectors; ++i)
        if (inside_ >> i & 1u)
          staged_[i] = *reinterpret_cast<const Loaded*>(cursor_ + i * step_);
    } else {
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        bool read = (inside_ >> i & 1u) && k_of(i) < k_left;
        staged_[i] = read ? *reinterpret_cast<const Loaded*>(cursor_ + i * step_) : Loaded{};
      }
    }
    cursor_ += advance_;
  }

  __device__ __forceinline__ void store(Rows rows) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if constexpr (along_k) {
#pragma unroll
        for (int e = 0; e < vector; ++e) rows[k_of(i) + e][mn_of(i)] = widen<Accumulator>(staged_[i].element[e]);
      } else {
        constexpr int chunk = vector * sizeof(Accumulator) > 16 ? 16 / sizeof(Accumulator) : vector;
#pragma unroll
        for (int c = 0; c < vector; c += chunk) {
          Vector<Accumulator, chunk> wide;
#pragma unroll
          for (int e = 0; e < chunk; ++e) wide.element[e] = widen<Accumulator>(staged_[i].element[c + e]);
          *reinterpret_cast<Vector<Accumulator, chunk>*>(&rows[k_of(i)][mn_of(i) + c]) = wide;
        }
      }
    }
  }
};

}  // namespace tilesmith
