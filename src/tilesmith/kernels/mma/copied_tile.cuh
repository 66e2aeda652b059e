// One operand's tile on its way from global to shared memory, and from there to a warp's lanes.
//
// A tile is `extent` rows of A, or columns of B (mn), by `depth` of K. In shared memory it lies as it does in global
// memory, along K or across it, with its places exchanged such that neither copies nor reads meet in a bank.
//
// A warp takes 8 groups of `group` neighbours along mn, and 16 of K at once. A lane has one of the groups, and 4
// neighbours along K: that is a few vectors, whichever way the tile lies.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/shared.cuh"

namespace tilesmith {

constexpr int lane_k = 4;  // of a lane, side by side

// Which group a lane has, by its row (of A, or column of B) of the product instruction. Rows 2 s and 2 s + 1, whose
// results one lane gets, are four groups apart: so four lanes' groups, which they store at once, lie side by side.
__device__ __forceinline__ constexpr int group_of(int row) { return row / 2 + row % 2 * 4; }

template <int extent, int depth, int group, int threads, bool along_k, bool aligned>
class CopiedTile {
  static_assert(group == 2 || group == 4);
  static_assert(extent % (8 * group) == 0 && depth % 16 == 0);

  static constexpr int vector = aligned ? 4 : 1;                    // floats of a copy
  static constexpr int line = (along_k ? depth : extent) / vector;  // copies side by side
  static constexpr int lines_at_once = threads / line;
  static constexpr int copies = extent * depth / vector / threads;  // of a thread
  static_assert(line * lines_at_once == threads && copies * vector * threads == extent * depth && copies <= 32);

  const float* cursor_;  // this thread's first copy of the next tile
  int step_;             // from one of its copies to the next
  int advance_;          // from one tile to the next
  int valid_;            // across K: floats of a copy that are inside of the matrix
  unsigned inside_;      // along K: bit i: its i-th copy is

  static __device__ __forceinline__ int in_line() { return threadIdx.x % line * vector; }
  static __device__ __forceinline__ int across(int i) { return threadIdx.x / line + i * lines_at_once; }
  static __device__ __forceinline__ int clamp(int floats) { return max(min(floats, vector), 0); }

 public:
  static constexpr int floats = extent * depth;

  // Where an element of the tile lies. Each bit of the place is one of mn or k, or the sum of two: with numbers that
  // share no bits, place(x + y) is place(x) ^ place(y), and all that does not depend on the thread is a constant.
  static __device__ __forceinline__ constexpr unsigned place(unsigned mn, unsigned k) {
    if (along_k)
      return (mn * depth + k) ^ mn / (4 * group) % 2 * 16;
    const unsigned quad = k / lane_k % 4;
    return (k * extent + mn) ^ (group == 4 ? quad * 4 : quad % 2 * 4 + quad / 2 * 16);
  }

  // place ^ constant, the upper bits as an addition, which can be part of an instruction's address: only the lower ones
  // may be set in both.
  static __device__ __forceinline__ unsigned beyond(unsigned place, unsigned constant) {
    return (place ^ constant % 32) + constant / 32 * 32;
  }

  // The tile whose first row or column is `first`, of a matrix with `size` of them.
  __device__ __forceinline__ CopiedTile(const float* matrix, int first, int size, long long stride_mn,
                                        long long stride_k)
      : step_(static_cast<int>(lines_at_once * (along_k ? stride_mn : stride_k))),
        advance_(static_cast<int>(depth * stride_k)),
        valid_(clamp(size - first - in_line())),
        inside_(0) {
    const int mn = along_k ? across(0) : in_line(), k = along_k ? in_line() : across(0);
    cursor_ = matrix + (first + mn) * stride_mn + k * stride_k;
#pragma unroll
    for (int i = 0; i < copies; ++i) inside_ |= static_cast<unsigned>(first + across(i) < size) << i;
  }

  // Starts the copies of the next tile along K, which has `k_left` elements before K's end. What is past an edge of the
  // matrix is zero, in both operands where it is past the end of K, so that a NaN on one side meets no product.
  __device__ __forceinline__ void start(float* tile, int k_left) {
    const unsigned own = along_k ? place(across(0), in_line()) : place(in_line(), across(0));
    const int valid = along_k ? clamp(k_left - in_line()) : valid_;
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const bool is_inside = along_k ? inside_ >> i & 1u : across(i) < k_left;
      const unsigned step = along_k ? place(i * lines_at_once, 0) : place(0, i * lines_at_once);
      const unsigned to = ptx::shared_address(tile + beyond(own, step));
      if constexpr (aligned)
        ptx::copy_start_16(to, cursor_ + i * step_, is_inside ? valid * 4 : 0);
      else
        ptx::copy_start_4(to, cursor_ + i * step_, is_inside && valid);
    }
    cursor_ += advance_;
  }

  // A lane's values, of which the first is at `at`.
  static __device__ __forceinline__ void read(float (&values)[group][lane_k], const float* tile, unsigned at) {
    if constexpr (along_k) {
#pragma unroll
      for (int j = 0; j < group; ++j) {
        const auto found = *reinterpret_cast<const Vector<float, lane_k>*>(tile + beyond(at, place(j, 0)));
#pragma unroll
        for (int i = 0; i < lane_k; ++i) values[j][i] = found.element[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < lane_k; ++i) {
        const auto found = *reinterpret_cast<const Vector<float, group>*>(tile + beyond(at, place(0, i)));
#pragma unroll
        for (int j = 0; j < group; ++j) values[j][i] = found.element[j];
      }
    }
  }
};

}  // namespace tilesmith
