// Tiles of float32 operands in shared memory, as TMA writes them, for consumers that split them.
//
// A tile has `extent` rows and tile_k of K. It is made of swizzle atoms, lines of 128 bytes:
//
//   K-major    atoms of 32 of K: a line per row
//   MN-major   atoms of 32 rows: a line per step of K
#pragma once

#include "batch.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "tile.cuh"

namespace tilesmith {

// What a thread has of 64 rows and wgmma_k of K where wgmma takes A from registers: element 2 i + e is of row
// lane / 4 + 8 (i % 2) of its warp's 16 rows, and of k = 2 (lane % 4) + 8 (i / 2) + e.
struct Fp32Fragment {
  static constexpr int registers = 4;  // of each 16-bit term
  float values[2 * registers];
};

template <int extent, bool mn_major>
class Fp32Tile {
  static constexpr int line = 32;
  static constexpr int line_bytes = line * sizeof(float);
  static constexpr int atoms = (mn_major ? extent : tile_k) / line;
  static constexpr int lines = mn_major ? tile_k : extent;  // of an atom
  static constexpr int atom_bytes = lines * line_bytes;

 public:
  static constexpr int bytes = atoms * atom_bytes;
  // From one group of wgmma_m rows to the next.
  static constexpr int group_bytes = mn_major ? wgmma_m / line * atom_bytes : wgmma_m * line_bytes;

  template <int rank>
  static __device__ __forceinline__ void load(unsigned char* tile, const ptx::TensorMap& map, int first, int first_k,
                                              const BatchIndex& batch, ptx::Barrier& barrier) {
#pragma unroll
    for (int p = 0; p < atoms; ++p)
      ptx::tma_load(tile + p * atom_bytes, map,
                    mn_major ? coordinates<rank>(first + p * line, first_k, batch)
                             : coordinates<rank>(first_k + p * line, first, batch),
                    barrier);
  }

  // Reads fragments of a thread of a consumer. The swizzle leaves four different offsets.
  class Reader {
    unsigned offsets_[4];

   public:
    __device__ __forceinline__ explicit Reader(int thread) {
      const int warp = thread / 32, row = thread % 32 / 4, step = thread % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (mn_major) {  // of a row of both, and of a k of both
          const int h = i / 2, k = 2 * step + i % 2;
          offsets_[i] = warp / 2 * atom_bytes + k * line_bytes +
                        (((warp % 2 * 4 + h * 2 + row / 4) ^ k) * 16 + row % 4 * sizeof(float));
        } else {  // of each 8 of k in a line
          offsets_[i] = (warp * 16 + row) * line_bytes + ((i * 2 + step / 2) ^ row) * 16 + step % 2 * 8;
        }
      }
    }

    // Of the part number `part` along K, wgmma_k each, of the consumer's rows in a tile.
    template <int part>
    __device__ __forceinline__ Fp32Fragment read(unsigned rows) const {
      Fp32Fragment fragment;
#pragma unroll
      for (int i = 0; i < Fp32Fragment::registers; ++i) {
        const int h = i % 2, eight = part * 2 + i / 2;
        if constexpr (mn_major) {
#pragma unroll
          for (int e = 0; e < 2; ++e)
            fragment.values[2 * i + e] =
                __uint_as_float(ptx::shared_load(rows + offsets_[2 * h + e] + eight * 8 * line_bytes));
        } else {
          const auto pair =
              ptx::shared_load_pair(rows + offsets_[eight % 4] + eight / 4 * atom_bytes + h * 8 * line_bytes);
          fragment.values[2 * i] = pair.element[0];
          fragment.values[2 * i + 1] = pair.element[1];
        }
      }
      return fragment;
    }
  };
};

}  // namespace tilesmith
