// One operand's tile on its way from global to shared memory, and from there to a warp's lanes.
//
// A tile is `extent` rows of A, or columns of B (mn), by `depth` of K. In shared memory it lies as it does in global
// memory, along K or across it, with its places exchanged such that neither copies nor reads meet in a bank.
//
// A warp takes 8 groups of `group` neighbours along mn, and 16 of K at once. A lane has one of the groups, and 4
// neighbours along K: that is a few vectors, whichever way the tile lies.
//
// Copies of 16, 8 or 4 bytes start many tiles ahead. Less cannot be copied so: single values of 16 bits pass through
// registers, which hold one tile; and all copies do where a GPU has none that threads need not wait for (`holds`).
#pragma once

#include "ptx/copy.cuh"
#include "ptx/shared.cuh"

namespace tilesmith {

constexpr int lane_k = 4;  // of a lane, side by side

// Which group a lane has, by its row (of A, or column of B) of the product instruction. Rows 2 s and 2 s + 1, whose
// results one lane gets, are four groups apart: so four lanes' groups, which they store at once, lie side by side.
__device__ __forceinline__ constexpr int group_of(int row) { return row / 2 + row % 2 * 4; }

// A lane's neighbours along K.
template <typename Element>
using Quad = Vector<Element, lane_k>;

// What registers hold of a copy.
template <typename Element, int bytes>
struct HeldCopy {
  using Type = Vector<unsigned, bytes / 4>;
};
template <typename Element>
struct HeldCopy<Element, sizeof(Element)> {
  using Type = Vector<Element, 1>;
};

template <typename Element, int extent, int depth, int group, int threads, bool along_k, int copy_bytes,
          bool by_matrices, bool holds>
class CopiedTile {
  static_assert(by_matrices ? sizeof(Element) == 2 : group == 2 || group == 4 || (group == 8 && sizeof(Element) == 8));
  static_assert(extent % (8 * group) == 0 && depth % 16 == 0);

  static constexpr int vector = copy_bytes / sizeof(Element);       // elements of a copy
  static constexpr int pair = 2;                                    // doubles that are read at once
  static constexpr int line = (along_k ? depth : extent) / vector;  // copies side by side
  static constexpr int lines_at_once = threads / line;
  static constexpr int copies = extent * depth / vector / threads;  // of a thread
  static_assert(line * lines_at_once == threads && copies * vector * threads == extent * depth && copies <= 32);

 public:
  static constexpr int elements = extent * depth;
  static constexpr bool is_held = holds || copy_bytes < 4;  // in registers
  static constexpr bool is_along_k = along_k;

 private:
  using Copy = typename HeldCopy<Element, copy_bytes>::Type;

  const Element* cursor_;  // this thread's first copy of the next tile
  int step_;               // from one of its copies to the next
  int advance_;            // from one tile to the next
  int valid_;              // across K: elements of a copy that are inside of the matrix
  unsigned inside_;        // along K: bit i: its i-th copy is
  Copy held_[is_held ? copies : 1];

  static __device__ __forceinline__ int in_line() { return threadIdx.x % line * vector; }
  static __device__ __forceinline__ int across(int i) { return threadIdx.x / line + i * lines_at_once; }
  static __device__ __forceinline__ const Copy& copy(const Element* from) {
    return *reinterpret_cast<const Copy*>(from);
  }
  static __device__ __forceinline__ int clamp(int elements) { return max(min(elements, vector), 0); }

 public:
  static __device__ __forceinline__ unsigned first_place() {
    return along_k ? place(across(0), in_line()) : place(in_line(), across(0));
  }

 private:
  static __device__ __forceinline__ constexpr unsigned step_of_places(int i) {
    return along_k ? place(i * lines_at_once, 0) : place(0, i * lines_at_once);
  }

 public:
  // Where an element of the tile lies. Each bit of the place is one of mn or k, or the sum of two: with numbers that
  // share no bits, place(x + y) is place(x) ^ place(y), and all that does not depend on the thread is a constant.
  static __device__ __forceinline__ constexpr unsigned place(unsigned mn, unsigned k) {
    constexpr unsigned half_line = 64 / sizeof(Element);  // of the banks
    if (by_matrices) {
      // Rows that are read at once are neighbours. They have 16 bytes each, in places of their own.
      constexpr unsigned row = 8, line = along_k ? depth : extent, lines_of_banks = line < 64 ? 64 / line : 1;
      const unsigned at = along_k ? mn : k, in_line = along_k ? k : mn;
      return at * line + (in_line ^ at / lines_of_banks % (8 / lines_of_banks) * row);
    }
    if (sizeof(Element) == 8) {
      // A lane's access is a pair. Groups that are read at once are four apart, and so are the quads along K.
      const unsigned is_beyond_four = mn / group / 4 % 2;
      if (along_k)
        return (mn * depth + k) ^ is_beyond_four * pair;
      return (k * extent + mn) ^ k / lane_k % 4 * pair ^ (group > 2 ? is_beyond_four * half_line : 0);
    }
    if (along_k) {
      const unsigned own_group = mn / group;
      const unsigned quarters = sizeof(Element) == 2 ? own_group % 2 * half_line / 2 : 0;
      return (mn * depth + k) ^ quarters ^ own_group / 4 % 2 * half_line;
    }
    const unsigned quad = k / lane_k % 4;
    if (sizeof(Element) == 2)
      return (k * extent + mn) ^ quad % 2 * 2 * lane_k * (group == 4 ? 1 : 2) ^ quad / 2 * half_line;
    return (k * extent + mn) ^ (group == 4 ? quad * 4 : quad % 2 * 4 + quad / 2 * 16);
  }

  // place ^ constant, the upper bits as an addition, which can be part of an instruction's address: only the lower ones
  // may be set in both.
  static __device__ __forceinline__ unsigned beyond(unsigned place, unsigned constant) {
    constexpr unsigned line_of_banks = 128 / sizeof(Element);
    return (place ^ constant % line_of_banks) + constant / line_of_banks * line_of_banks;
  }

  // The tile whose first row or column is `first`, of a matrix with `size` of them.
  __device__ __forceinline__ CopiedTile(const Element* matrix, int first, int size, long long stride_mn,
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
  __device__ __forceinline__ void start(unsigned tile_address, int k_left) {
    if constexpr (is_held) {
      hold(k_left);
      return;
    }
    const unsigned first = first_place();
    const int valid = along_k ? clamp(k_left - in_line()) : valid_;
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const bool is_inside = along_k ? (inside_ >> i & 1u) != 0 : across(i) < k_left;
      const Element* const from = cursor_ + i * step_;
      const unsigned to = tile_address + beyond(first, step_of_places(i)) * sizeof(Element);
      const int valid_bytes = is_inside ? valid * static_cast<int>(sizeof(Element)) : 0;
      if constexpr (copy_bytes == 16)
        ptx::copy_start_16(to, from, valid_bytes);
      else if constexpr (vector > 1)
        ptx::copy_start_4(to, from, valid_bytes);
      else if constexpr (copy_bytes == 8)
        ptx::copy_start_8_or_none(to, from, is_inside && valid);
      else
        ptx::copy_start_4_or_none(to, from, is_inside && valid);
    }
    cursor_ += advance_;
  }

  // The same into registers. That copies are whole is asked once: then none of them waits for another. And it is asked
  // of a number that is not clamped: of one that is, ptxas takes the answer for sm_90 from the instruction that clamps,
  // which is a wrong one for numbers below zero (13.0).
  __device__ __forceinline__ void hold(int k_left) {
    const auto is_inside = [&](int i) { return along_k ? (inside_ >> i & 1u) != 0 : across(i) < k_left; };
    if constexpr (vector == 1) {
      const int valid = along_k ? clamp(k_left - in_line()) : valid_;
#pragma unroll
      for (int i = 0; i < copies; ++i) held_[i].element[0] = is_inside(i) && valid ? cursor_[i * step_] : Element{};
    } else if (const int left = along_k ? k_left - in_line() : valid_; left >= vector) {
#pragma unroll
      for (int i = 0; i < copies; ++i) held_[i] = is_inside(i) ? copy(cursor_ + i * step_) : Copy{};
    } else {
      const int valid = max(left, 0);
      const auto bits = [&](int i, int e) {
        const Element* const from = cursor_ + i * step_ + e;
        return is_inside(i) && e < valid ? *reinterpret_cast<const unsigned short*>(from) : 0u;
      };
#pragma unroll
      for (int i = 0; i < copies; ++i)
#pragma unroll
        for (int w = 0; w < copy_bytes / 4; ++w) held_[i].element[w] = bits(i, 2 * w) | bits(i, 2 * w + 1) << 16;
    }
    cursor_ += advance_;
  }

  // The same of a tile that is whole along K, of a matrix whose lines are copies that are whole; or of the tile that is
  // `further` elements behind it. `first`: the first_place.
  __device__ __forceinline__ void start_whole(unsigned tile_address, unsigned first, long long further = 0) const {
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const bool is_inside = along_k ? (inside_ >> i & 1u) != 0 : valid_ > 0;
      const unsigned to = tile_address + beyond(first, step_of_places(i)) * sizeof(Element);
      ptx::copy_start_16_or_none(to, cursor_ + further + i * step_, is_inside);
    }
  }
  __device__ __forceinline__ void advance() { cursor_ += advance_; }

  // The same into registers.
  __device__ __forceinline__ void hold_whole() {
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const bool is_inside = along_k ? (inside_ >> i & 1u) != 0 : valid_ > 0;
      held_[i] = is_inside ? copy(cursor_ + i * step_) : Copy{};
    }
    advance();
  }

  // Stores the tile that registers hold, of copies of 16 bytes. `first`: the first_place.
  __device__ __forceinline__ void put_vectors(unsigned tile_address, unsigned first) const {
#pragma unroll
    for (int i = 0; i < copies; ++i)
      ptx::shared_store(tile_address + beyond(first, step_of_places(i)) * sizeof(Element), held_[i]);
  }

  // Stores the tile whose copies were started last, if registers hold it.
  __device__ __forceinline__ void put(Element* tile) const {
    if constexpr (is_held) {
      const unsigned first = first_place();
#pragma unroll
      for (int i = 0; i < copies; ++i) *reinterpret_cast<Copy*>(tile + beyond(first, step_of_places(i))) = held_[i];
    }
  }

  // A lane's values, of which the first is at `at`.
  static __device__ __forceinline__ void read(Quad<Element> (&values)[group], const Element* tile, unsigned at) {
    if constexpr (sizeof(Element) == 8) {
      read_pairs(values, tile, at);
    } else if constexpr (along_k) {
#pragma unroll
      for (int j = 0; j < group; ++j)
        values[j] = *reinterpret_cast<const Quad<Element>*>(tile + beyond(at, place(j, 0)));
    } else {
      Vector<Element, group> found[lane_k];
#pragma unroll
      for (int i = 0; i < lane_k; ++i)
        found[i] = *reinterpret_cast<const Vector<Element, group>*>(tile + beyond(at, place(0, i)));
#pragma unroll
      for (int j = 0; j < group; ++j)
#pragma unroll
        for (int i = 0; i < lane_k; ++i) values[j].element[i] = found[i].element[j];
    }
  }

 private:
  // The same of doubles: 16 bytes are two of them.
  static __device__ __forceinline__ void read_pairs(Quad<Element> (&values)[group], const Element* tile, unsigned at) {
    constexpr int step_mn = along_k ? 1 : pair, step_k = along_k ? pair : 1;
#pragma unroll
    for (int j = 0; j < group; j += step_mn)
#pragma unroll
      for (int i = 0; i < lane_k; i += step_k) {
        const auto found = *reinterpret_cast<const Vector<Element, pair>*>(tile + beyond(at, place(j, i)));
#pragma unroll
        for (int e = 0; e < pair; ++e) values[along_k ? j : j + e].element[along_k ? i + e : i] = found.element[e];
      }
  }
};

}  // namespace tilesmith
