// The first step of the epilogue of a consumer's part of a tile, before the activation: see kernels/epilogue.cuh.
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/hopper/common.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr bool bias_of_rows = plan::out_along_m;  // biases run along the lines of the output
constexpr bool has_column_bias = has_epilogue && !bias_of_rows;
constexpr bool has_residual = plan::residual_vector > 0;
constexpr bool has_activation = plan::activation != Activation::none;

// In shared memory: the bias of a consumer's columns. A thread has no registers for all of it.
template <bool any>
struct ColumnBias {
  float bias[consumers][plan::tile_n];

  __device__ __forceinline__ float* column_bias(int consumer) { return bias[consumer]; }
};
template <>
struct ColumnBias<false> {
  __device__ __forceinline__ float* column_bias(int) { return nullptr; }
};

// The bias of a tile, on its way there.
struct TileBias {
  static constexpr int own = bias_of_rows ? 2 : (plan::tile_n + warpgroup_threads - 1) / warpgroup_threads;

  float values[own];  // of columns; or of the two rows that the thread has

  __device__ __forceinline__ TileBias() {}  // nothing that is not asked for is set

  // Starts to read it. `first_m` is the thread's first row, `first_n` the tile's first column.
  template <typename Epilogue>
  __device__ __forceinline__ void read(const Epilogue& epilogue, int first_m, int first_n, int end_m, int end_n,
                                       int thread) {
    constexpr int step = bias_of_rows ? 8 : warpgroup_threads;
    const int first = bias_of_rows ? first_m : first_n + thread, last = (bias_of_rows ? end_m : end_n) - 1;
#pragma unroll
    for (int i = 0; i < own; ++i) values[i] = epilogue.bias_at(min(first + i * step, last));
  }

  __device__ __forceinline__ void put_columns(float* shared, int thread) const {
    if constexpr (!bias_of_rows)
#pragma unroll
      for (int i = 0; i < own; ++i)
        if (thread + i * warpgroup_threads < plan::tile_n)
          shared[thread + i * warpgroup_threads] = values[i];
  }
};

// Applies the epilogue to the elements that a thread has of a tile: see common.cuh for their order.
class TileEpilogue {
 protected:
  Epilogue<Output, max_batch_dims> epilogue_;
  const int end_m_, end_n_;
  const float* const column_bias_;  // of the thread's first column
  float row_bias_[2] = {};
  int first_m_ = 0, first_n_ = 0;  // the thread's

  __device__ __forceinline__ float added(float x, Output residual) const {
    return epilogue_.with_residual(x, widen<float>(residual));
  }

 public:
  __device__ __forceinline__ TileEpilogue(const plan::EpilogueParameters& p, int end_m, int end_n,
                                          const float* column_bias)
      : epilogue_(p), end_m_(end_m), end_n_(end_n), column_bias_(column_bias + threadIdx.x % 4 * 2) {}

  // Starts to read the bias of a tile.
  __device__ __forceinline__ void read_bias(TileBias& bias, int first_m, int first_n, int thread) const {
    bias.read(epilogue_, first_m, first_n, end_m_, end_n_, thread);
  }

  // The next results are those of the tile of this matrix and bias from this row of the thread and this column on.
  __device__ __forceinline__ void move_to(const BatchIndex& batch, int first_m, int first_n, const TileBias& bias) {
    epilogue_.move_to(batch.at);
    first_m_ = first_m;
    first_n_ = first_n + threadIdx.x % 4 * 2;
    if constexpr (bias_of_rows) {
      row_bias_[0] = bias.values[0];
      row_bias_[1] = bias.values[1];
    }
  }

  // The residual from an element on, whose lines may be read together.
  template <typename Rows>
  __device__ __forceinline__ Rows residual_from(const BatchIndex& batch, int m, int n) const {
    Epilogue<Output, max_batch_dims> epilogue = epilogue_;
    epilogue.move_to(batch.at);
    return {epilogue.residual_from(m, n), epilogue.residual_step_m(), end_m_ - m, end_n_ - n};
  }

  // Factor and bias, for `columns` columns from `first` on.
  template <int first, int columns>
  __device__ __forceinline__ void begin(float (&sum)[elements]) const {
    begin<first, columns, false>(sum, [](int, int) { return Vector<Output, 2>{}; });
  }
  // The same with the residual, of which `pairs` has two columns: the j-th that are the thread's, in its row h.
  template <int first, int columns, bool with_residual = true, typename Pairs>
  __device__ __forceinline__ void begin(float (&sum)[elements], const Pairs& pairs) const {
#pragma unroll
    for (int j = first / 8; j < (first + columns) / 8; ++j) {
      Vector<float, 2> of_columns = {};
      if constexpr (!bias_of_rows)
        of_columns = *reinterpret_cast<const Vector<float, 2>*>(column_bias_ + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Vector<Output, 2> residual = pairs(j, h);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = sum[4 * j + 2 * h + e];
          x = epilogue_.before_activation(x, bias_of_rows ? row_bias_[h] : of_columns.element[e]);
          if constexpr (with_residual)
            x = added(x, residual.element[e]);
        }
      }
    }
  }
};

}  // namespace tilesmith
