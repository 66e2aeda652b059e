// Which matrix of a batch: an index for each dimension of the batch, the fastest first.
#pragma once

namespace tilesmith {

constexpr int most_batch_dimensions = 3;

struct BatchIndex {
  int at[most_batch_dimensions];

  // The index of the matrix with this number, in a batch of these sizes.
  template <int batch_rank>
  static __device__ __forceinline__ BatchIndex of(int number, const BatchIndex& sizes) {
    BatchIndex index = {};
#pragma unroll
    for (int d = 0; d < batch_rank; ++d) {
      index.at[d] = number % sizes.at[d];
      number /= sizes.at[d];
    }
    return index;
  }

  __device__ __forceinline__ BatchIndex operator*(const BatchIndex& other) const {
    BatchIndex product;
#pragma unroll
    for (int d = 0; d < most_batch_dimensions; ++d) product.at[d] = at[d] * other.at[d];
    return product;
  }
};

}  // namespace tilesmith
