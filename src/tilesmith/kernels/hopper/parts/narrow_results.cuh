// What a thread holds of a tile, as results of 16 bits: in half of the registers that the sums have. Results of
// float32: wide_results.cuh.
#pragma once

#include "element.cuh"
#include "kernels/hopper/common.cuh"
#include "ptx/convert.cuh"
#include "ptx/warp.cuh"

namespace tilesmith {

static_assert(sizeof(Output) == 2);

template <typename Narrow>
__device__ __forceinline__ unsigned narrow_pair(float low, float high);
template <>
__device__ __forceinline__ unsigned narrow_pair<float16>(float low, float high) {
  return ptx::float_to_half_pair(low, high);
}
template <>
__device__ __forceinline__ unsigned narrow_pair<bfloat16>(float low, float high) {
  return ptx::float_to_bfloat16_pair(low, high);
}

class Results {
  unsigned pairs_[elements / 2];

 public:
  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements / 2; ++i) pairs_[i] = narrow_pair<Output>(sum[2 * i], sum[2 * i + 1]);
  }

  // Writes the columns from `first` on to a chunk that is staged at this address.
  template <typename Chunk, int first>
  __device__ __forceinline__ void write(unsigned chunk, int warp, int lane) const {
    const unsigned* pairs = pairs_ + first / 4;
    // The lane's row of one of the 8x8 matrices: its element that comes first in memory.
    const int m = Chunk::first_row(warp) + lane / 8 % 2 * 8 + (Chunk::is_along_m ? 0 : lane % 8);
    const int n = lane / 16 * 8 + (Chunk::is_along_m ? lane % 8 : 0);
    if constexpr (Chunk::columns % 16 == 0) {
#pragma unroll
      for (int g = 0; g < Chunk::columns / 16; ++g) {
        const unsigned* x = pairs + 4 * g;
        const unsigned at = Chunk::address_of(chunk, m, n + 16 * g);
        if constexpr (Chunk::is_along_m)
          ptx::store_matrices_transposed(at, x[0], x[1], x[2], x[3]);
        else
          ptx::store_matrices(at, x[0], x[1], x[2], x[3]);
      }
    } else {
      static_assert(Chunk::columns == 8);
      const unsigned at = Chunk::address_of(chunk, m, n % 8);
      if constexpr (Chunk::is_along_m)
        ptx::store_matrices_transposed(at, pairs[0], pairs[1]);
      else
        ptx::store_matrices(at, pairs[0], pairs[1]);
    }
  }
};

}  // namespace tilesmith
