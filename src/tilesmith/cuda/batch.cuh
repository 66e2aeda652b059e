// Which matrix of a batch: an index for each dimension of the batch, the fastest first.
#pragma once

namespace tilesmith {

struct BatchIndex {
  int at[max_batch_dims];

  // The index of the matrix with this number, in a batch of these sizes. `batch_dims`: none, one, or all, of which some
  // may have the size one. Divisions take their time, so there are none that are not needed.
  template <int batch_dims = max_batch_dims>
  static __device__ __forceinline__ BatchIndex of(int number, const int (&sizes)[max_batch_dims]) {
    static_assert(batch_dims <= 1 || batch_dims == max_batch_dims);
    BatchIndex index = {};
    if constexpr (batch_dims > 0)
      index.at[0] = number;
    if (batch_dims > 1 && number >= sizes[0]) {
#pragma unroll
      for (int d = 0; d < max_batch_dims; ++d) {
        index.at[d] = number % sizes[d];
        number /= sizes[d];
      }
    }
    return index;
  }

  __device__ __forceinline__ BatchIndex operator*(const int (&factors)[max_batch_dims]) const {
    BatchIndex product;
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) product.at[d] = at[d] * factors[d];
    return product;
  }
};

}  // namespace tilesmith
