// Tiles of a float32 A that lies across K, for products of TF32. From shared memory wgmma takes TF32 along K alone, but
// from registers it takes any A: so consumers read it there.
#pragma once

#include "batch.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "tile.cuh"

namespace tilesmith {

// A tile of `extent` rows of float32 in shared memory, as TMA writes it. It is made of swizzle atoms of 32 rows: a line
// of 128 bytes for each k.
template <int extent>
class TurnedTile {
  static constexpr int line = 32;
  static constexpr int line_bytes = line * sizeof(float);
  static constexpr int depth = tile_k * operand_bytes / sizeof(float);
  static constexpr int atom_bytes = depth * line_bytes;
  static constexpr int step_k = 8;  // of an instruction

 public:
  static constexpr int bytes = extent / line * atom_bytes;
  static constexpr int steps = depth / step_k;
  // From one group of wgmma_m rows to the next.
  static constexpr int group_bytes = wgmma_m / line * atom_bytes;

  // No other block needs it.
  template <int rank>
  static __device__ __forceinline__ void load(unsigned char* tile, const ptx::TensorMap& map, int first, int first_k,
                                              const BatchIndex& batch, ptx::Barrier& barrier, int, unsigned short) {
#pragma unroll
    for (int p = 0; p < extent / line; ++p)
      ptx::tma_load(tile + p * atom_bytes, map, coordinates<rank>(first + p * line, first_k, batch), barrier);
  }

  // What a thread has of 64 rows and step_k of K: element i is of row lane / 4 + 8 (i % 2) of its warp's 16 rows, and
  // of k = lane % 4 + 4 (i / 2).
  using Fragment = unsigned[4];

  class Reader {
    const bool is_odd_;
    unsigned offsets_[4];  // of the rows, in turn those of the first k and of the second that are read

   public:
    // Neighbours read their two k in opposite order: then the swizzle puts a warp's 32 elements into different banks.
    __device__ __forceinline__ explicit Reader(int thread) : is_odd_(thread % 2) {
      const int warp = thread / 32, row = thread % 32 / 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = thread % 4 + 4 * (i / 2 ^ thread % 2);
        offsets_[i] = warp / 2 * atom_bytes + k * line_bytes + ((warp % 2 * 4 + i % 2 * 2 + row / 4) ^ k) * 16 +
                      row % 4 * sizeof(float);
      }
    }

    // Of the step number `step` along K, of the consumer's rows in a tile.
    template <int step>
    __device__ __forceinline__ void read(unsigned rows, Fragment& to) const {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned first = ptx::shared_load(rows + offsets_[h] + step * step_k * line_bytes);
        const unsigned second = ptx::shared_load(rows + offsets_[h + 2] + step * step_k * line_bytes);
        to[h] = is_odd_ ? second : first;
        to[h + 2] = is_odd_ ? first : second;
      }
    }
  };
};

}  // namespace tilesmith
