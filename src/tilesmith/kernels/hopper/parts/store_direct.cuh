// Results of float32 go from registers to the output, 16 bytes at a time, where shared memory is busy with products and
// whole rows of a tile leave together. Lines of the output start at multiples of 16 bytes, and run along N.
#pragma once

#include "kernels/hopper/staging.cuh"
#include "vector.cuh"

namespace tilesmith {

static_assert(plan::out_store == Store::direct && !plan::out_along_m);

class Storer : public Staging<false> {
  static constexpr int columns = plan::chunk;
  static_assert(columns % 16 == 0);

 public:
  static constexpr int shared_bytes = 0;

  using Staging::Staging;

  template <int which>
  __device__ __forceinline__ void store(const Results& results, const Destination& to) const {
    plan::OutputLines lines = lines_;
    lines.first = to.matrix;
    store_columns<which * columns>(lines, results, to.first_m + warp_ * 16, to.first_n);
  }

  __device__ __forceinline__ void drain() const {}

 private:
  // Writes a chunk's columns, as far as they are inside the output. Of 16 columns, neighbours exchange what they have
  // of eight each: then a thread has four in a row, and four threads 64 bytes.
  template <int first>
  __device__ __forceinline__ void store_columns(const plan::OutputLines& out, const Results& results, int first_m,
                                                int first_n) const {
    const bool odd = lane_ % 2;
    const int m = first_m + lane_ / 4, n = first_n + first + (odd ? 8 : 0) + lane_ % 4 / 2 * 4;
    float* to = out.first + m * out.stride + n;
#pragma unroll
    for (int j = 0; j < columns; j += 16)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* left = results.values + (first + j) / 2 + 2 * h;
        const float* right = left + 4;
        float exchanged[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) exchanged[e] = __shfl_xor_sync(0xffffffffu, odd ? left[e] : right[e], 1);
        const Vector<float, 4> four = {odd ? exchanged[0] : left[0], odd ? exchanged[1] : left[1],
                                       odd ? right[0] : exchanged[0], odd ? right[1] : exchanged[1]};
        if (m + 8 * h < out.count && n + j < out.length)
          *reinterpret_cast<Vector<float, 4>*>(to + 8 * h * out.stride + j) = four;
      }
  }
};

}  // namespace tilesmith
