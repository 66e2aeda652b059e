// What a warp multiplies at once of tiles that ldmatrix reads: 16 of K, of all of the warp's rows and columns.
#pragma once

#include "kernels/mma/operand_tiles.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

// A lane's row of an 8x8 matrix lies along K or across it.
template <typename Tile>
__device__ __forceinline__ unsigned place_of_row(int mn, int k, int row) {
  return Tile::is_along_k ? Tile::place(mn + row, k) : Tile::place(mn, k + row);
}

// Loads four matrices of the tile at an address, `mn` and `k` further on than the lane's own place.
template <typename Tile, int mn, int k>
__device__ __forceinline__ void load_four(unsigned tile, unsigned own, unsigned& x0, unsigned& x1, unsigned& x2,
                                          unsigned& x3) {
  constexpr unsigned line_of_banks = 128 / sizeof(Element), at = Tile::place(mn, k), low = at % line_of_banks;
  constexpr int offset = static_cast<int>((at - low) * sizeof(Element));
  const unsigned address = tile + (own ^ low) * sizeof(Element);
  if constexpr (Tile::is_along_k)
    ptx::load_matrices<offset>(address, x0, x1, x2, x3);
  else
    ptx::load_matrices_transposed<offset>(address, x0, x1, x2, x3);
}

// Four matrices are two of rows by two of K.
class FragmentOfA {
  unsigned at_[mmas_m][4];

  template <int k, int i>
  __device__ __forceinline__ void read_from(unsigned tile, unsigned own) {
    if constexpr (i < mmas_m) {
      load_four<TileOfA, 16 * i, k>(tile, own, at_[i][0], at_[i][1], at_[i][2], at_[i][3]);
      read_from<k, i + 1>(tile, own);
    }
  }

 public:
  static __device__ __forceinline__ unsigned own_place() {
    const Share own(threadIdx.x);
    return place_of_row<TileOfA>(own.first_m_of_warp() + own.lane / 8 % 2 * 8, own.lane / 16 * 8, own.lane % 8);
  }
  // From a k of the tile on.
  template <int k>
  __device__ __forceinline__ void read(unsigned tile, unsigned own) {
    read_from<k, 0>(tile, own);
  }
  // Of 16 rows alone.
  template <int k, int i>
  __device__ __forceinline__ void read_one(unsigned tile, unsigned own) {
    load_four<TileOfA, 16 * i, k>(tile, own, at_[i][0], at_[i][1], at_[i][2], at_[i][3]);
  }
  __device__ __forceinline__ const unsigned (&operator[](int i) const)[4] { return at_[i]; }
};

// Four matrices are two of K by two of columns.
class FragmentOfB {
  unsigned at_[mmas_n][2];
  static_assert(mmas_n % 2 == 0);

  template <int k, int j>
  __device__ __forceinline__ void read_from(unsigned tile, unsigned own) {
    if constexpr (j < mmas_n) {
      load_four<TileOfB, 8 * j, k>(tile, own, at_[j][0], at_[j][1], at_[j + 1][0], at_[j + 1][1]);
      read_from<k, j + 2>(tile, own);
    }
  }

 public:
  static __device__ __forceinline__ unsigned own_place() {
    const Share own(threadIdx.x);
    return place_of_row<TileOfB>(own.first_n_of_warp() + own.lane / 16 * 8, own.lane / 8 % 2 * 8, own.lane % 8);
  }
  template <int k>
  __device__ __forceinline__ void read(unsigned tile, unsigned own) {
    read_from<k, 0>(tile, own);
  }
  // Of two groups of columns alone.
  template <int k, int j>
  __device__ __forceinline__ void read_pair(unsigned tile, unsigned own) {
    load_four<TileOfB, 8 * j, k>(tile, own, at_[j][0], at_[j][1], at_[j + 1][0], at_[j + 1][1]);
  }
  __device__ __forceinline__ const unsigned (&operator[](int j) const)[2] { return at_[j]; }
};

using Sums = Sum[mmas_m][mmas_n][4];

__device__ __forceinline__ void multiply_add(Sums& sum, const FragmentOfA& a, const FragmentOfB& b) {
#pragma unroll
  for (int j = 0; j < mmas_n; ++j)
#pragma unroll
    for (int i = 0; i < mmas_m; ++i) Own::multiply_add(sum[i][j], a[i], b[j]);
}

}  // namespace tilesmith
