// Copies an operand with any strides into lines along K, which start at multiples of 16 bytes and end with zeros.
//
// A block turns a tile: a warp reads 32 neighbours across K or along it, or words of four bytes across K, and writes
// vectors of 16 bytes.

#include "batch.cuh"
#include "ptx/grid.cuh"
#include "vector.cuh"

namespace tilesmith {

using plan::Element;
using plan::Parameters;

constexpr int rows = plan::tile_rows, depth = plan::tile_depth;
constexpr int warps = plan::threads / 32;
constexpr int in_word = sizeof(unsigned) / sizeof(Element);
constexpr int words = depth / in_word;  // of a row
constexpr int vectors = words / 4;
constexpr int lines = rows * depth / plan::at_once / 32 / warps;  // that a warp reads
static_assert(rows == 32 * plan::at_once && words == (sizeof(Element) == 1 ? 32 : depth));
static_assert(lines * warps * 32 * plan::at_once == rows * depth && rows * vectors % plan::threads == 0);

// Rows lie one bank further than those before, and one more after 32 of them: then neither lanes that read words of
// neighbouring rows nor those that write vectors meet in a bank.
using Tile = unsigned[rows][words + 1];
__device__ __forceinline__ unsigned& word_of(Tile& tile, int row, int word) {
  return tile[row][plan::at_once == 1 ? word : (word + row / 32) % words];
}

// Stores four bytes along K of each of four rows, of which there are four words across K.
__device__ __forceinline__ void store_turned(Tile& tile, int row, int word, const unsigned (&across)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    unsigned along = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) along |= (across[e] >> 8 * j & 0xffu) << 8 * e;
    word_of(tile, row + j, word) = along;
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads) turn(const __grid_constant__ Parameters p) {
  __shared__ Tile tile;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  const unsigned of_matrix = p.tiles_m * p.tiles_k;
  const unsigned matrix = blockIdx.x / of_matrix, number = blockIdx.x - matrix * of_matrix;
  const int first_k = static_cast<int>(number / p.tiles_m) * depth,
            first_m = static_cast<int>(number % p.tiles_m) * rows;
  const Element* from = p.source;
  unsigned batch = matrix;
  if (batch > 0)
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      from += batch % p.batch_size[d] * p.batch_stride[d];
      batch /= p.batch_size[d];
    }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool is_along_k = sizeof(Element) == 1 && p.is_along_k;  // of float32 that is copied by others
  if constexpr (plan::at_once == 4) {
    unsigned read[lines / 4][4];
    const int m = first_m + 4 * lane;
#pragma unroll
    for (int i = 0; i < lines; ++i) {
      const int k = first_k + 4 * (warp + i / 4 * warps) + i % 4;
      const bool is_inside = k < p.depth && m < p.rows;
      read[i / 4][i % 4] = is_inside ? *reinterpret_cast<const unsigned*>(from + k * p.stride_k + m) : 0u;
    }
#pragma unroll
    for (int i = 0; i < lines / 4; ++i) store_turned(tile, 4 * lane, warp + i * warps, read[i]);
  } else {
    Element read[lines];
#pragma unroll
    for (int i = 0; i < lines; ++i) {
      const int line = warp + i * warps;
      const int m = first_m + (is_along_k ? line % rows : lane);
      const int k = first_k + (is_along_k ? line / rows * 32 + lane : line);
      read[i] = k < p.depth && m < p.rows ? from[k * p.stride_k + m * p.stride_m] : Element(0);
    }
#pragma unroll
    for (int i = 0; i < lines; ++i) {
      const int line = warp + i * warps;
      const int row = is_along_k ? line % rows : lane, k = is_along_k ? line / rows * 32 + lane : line;
      reinterpret_cast<Element*>(tile[row])[k] = read[i];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows * vectors / plan::threads; ++i) {
    const int at = threadIdx.x + i * plan::threads, row = at / vectors, word = at % vectors * 4, k = word * in_word;
    if (first_m + row < p.rows && first_k + k < p.depth)
      *reinterpret_cast<Vector<unsigned, 4>*>(
          p.target + (static_cast<long long>(matrix) * p.rows + first_m + row) * p.pitch + first_k + k) = {
          word_of(tile, row, word), word_of(tile, row, word + 1), word_of(tile, row, word + 2),
          word_of(tile, row, word + 3)};
  }
}

}  // namespace tilesmith
