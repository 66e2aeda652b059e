// What a thread holds of a tile, as results of float32. Those of 16 bits: narrow_results.cuh.
#pragma once

#include "kernels/hopper/common.cuh"
#include "ptx/shared.cuh"

namespace tilesmith {

static_assert(sizeof(Output) == sizeof(float));

struct Results {
  float values[elements];

  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i];
  }
  __device__ __forceinline__ void add(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] += sum[i];
  }
  __device__ __forceinline__ void add_to(float (&sum)[elements]) const {
#pragma unroll
    for (int i = 0; i < elements; ++i) sum[i] += values[i];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = 0.0f;
  }
  // The infinities and NaNs of the sums, and zeros for all others.
  __device__ __forceinline__ void take_special(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i] - sum[i] == 0.0f ? 0.0f : sum[i];
  }

  // Writes the columns from `first` on to a chunk that is staged at this address.
  template <typename Chunk, int first>
  __device__ __forceinline__ void write(unsigned chunk, int warp, int lane) const {
    const float* own = values + first / 2;
#pragma unroll
    for (int j = 0; j < Chunk::columns / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = Chunk::first_row(warp) + lane / 4 + 8 * h;
        const int n = 8 * j + lane % 4 * 2;
        const float x = own[4 * j + 2 * h], y = own[4 * j + 2 * h + 1];
        if constexpr (Chunk::is_along_m) {
          ptx::shared_store(Chunk::address_of(chunk, m, n), x);
          ptx::shared_store(Chunk::address_of(chunk, m, n + 1), y);
        } else {
          ptx::shared_store(Chunk::address_of(chunk, m, n), x, y);
        }
      }
  }
};

}  // namespace tilesmith
