// Tiles of 16-bit operands in shared memory, as TMA writes and the tensor cores read them.
//
// A tile has `extent` rows of A (or columns of B) and tile_k of K. It is made of lines, which
// are contiguous in the operand as it is stored:
//
//   K-major    one swizzle atom: a line per row of the tile, tile_k long
//   MN-major   swizzle atoms of up to 64 rows: a line per step of K, as long as the atom is wide
//
// The 16-byte pieces of lines are permuted (swizzled) so that neither side meets bank conflicts.
#pragma once

#include "batch.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilesmith {

constexpr int warpgroup_threads = 128;
constexpr int wgmma_m = 64;
constexpr int wgmma_k = 16;
constexpr int operand_bytes = 2;

// Where the byte goes that would be at this address if its line were not swizzled.
template <int line_bytes>
__device__ __forceinline__ unsigned swizzled(unsigned address) {
  return address ^ (address >> 7 & (line_bytes / 16 - 1)) << 4;
}

template <int rank>
__device__ __forceinline__ ptx::Coordinates<rank> coordinates(int along_line, int line, const BatchIndex& batch) {
  ptx::Coordinates<rank> c;
  c.at[0] = along_line;
  c.at[1] = line;
#pragma unroll
  for (int d = 2; d < rank; ++d) c.at[d] = batch.at[d - 2];
  return c;
}

// `sharers` blocks of a cluster need the same tile: each of them loads a slice of it for all.
template <int extent, bool mn_major, int sharers>
struct OperandTile {
  static constexpr int atom_width = !mn_major || extent % 64 == 0 ? 64 : extent % 32 == 0 ? 32 : 16;
  static constexpr int atoms = mn_major ? extent / atom_width : 1;
  static constexpr int lines = mn_major ? tile_k : extent;  // of an atom
  static constexpr int line_bytes = (mn_major ? atom_width : tile_k) * operand_bytes;
  static constexpr int atom_bytes = lines * line_bytes;
  static constexpr int bytes = atoms * atom_bytes;
  static constexpr int slice_lines = lines / sharers;
  static_assert(!mn_major || atoms * atom_width == extent);
  static_assert(slice_lines % 8 == 0 && slice_lines * sharers == lines);
  static_assert(bytes % 1024 == 0);

  // From one step of wgmma_k along K to the next.
  static constexpr int step_bytes = mn_major ? wgmma_k * line_bytes : wgmma_k * operand_bytes;
  // From one group of wgmma_m rows to the next, in a tile that has several.
  static constexpr int group_bytes = wgmma_m * tile_k * operand_bytes;

  static __device__ __forceinline__ unsigned long long descriptor(const unsigned char* tile) {
    return ptx::matrix_descriptor(tile, mn_major ? atom_bytes : 16, 8 * line_bytes, line_bytes);
  }

  // Starts the copy of this block's slice to all sharers.
  template <int rank>
  static __device__ __forceinline__ void load(unsigned char* tile, const ptx::TensorMap& map, int first, int first_k,
                                              const BatchIndex& batch, ptx::Barrier& barrier, int slice,
                                              unsigned short blocks) {
    const int first_line = slice * slice_lines;
#pragma unroll
    for (int p = 0; p < atoms; ++p) {
      unsigned char* to = tile + p * atom_bytes + first_line * line_bytes;
      const auto from = mn_major ? coordinates<rank>(first + p * atom_width, first_k + first_line, batch)
                                 : coordinates<rank>(first_k, first + first_line, batch);
      if constexpr (sharers > 1)
        ptx::tma_load_multicast(to, map, from, barrier, blocks);
      else
        ptx::tma_load(to, map, from, barrier);
    }
  }
};

}  // namespace tilesmith
