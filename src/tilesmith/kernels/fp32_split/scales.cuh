// Undoing the powers of two by which the rows of A and the columns of B were scaled.
#pragma once

#include "batch.cuh"

namespace tilesmith {

// What undoes the scales of the rows of a matrix, from its first one on.
template <typename RowScales>
__device__ __forceinline__ const int* scales_of(const RowScales& scales, const BatchIndex& batch) {
  int matrix = 0;
#pragma unroll
  for (int d = 0; d < max_batch_dims; ++d) matrix += batch.at[d] * scales.matrices[d];
  return scales.first + static_cast<long long>(matrix) * scales.pitch;
}

__device__ __forceinline__ float times_power_of_two(float x, int exponent) {
  // Three factors that are floats, whatever the exponent. Only a result that is no normal number may round twice.
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int part = min(max(exponent, -126), 127);
    x *= __int_as_float((part + 127) << 23);
    exponent -= part;
  }
  return x;
}

template <Scale scale>
__device__ __forceinline__ float unscaled(float x, int row, int column) {
  if constexpr (scale == Scale::factors)
    return x * __int_as_float(row) * __int_as_float(column);
  else if constexpr (scale == Scale::exponents)
    return times_power_of_two(x, row + column);
  else
    return x;
}

}  // namespace tilesmith
