// The epilogue of a consumer's part of a tile: see kernels/epilogue.cuh.
#pragma once

#include "kernels/epilogue.cuh"
#include "tile.cuh"
#include "tile_store.cuh"
#include "vector.cuh"

namespace tilesmith {

// The bias of a tile. That of the columns goes to shared memory; a thread has no registers for all of it.
template <int tile_n, int threads>
struct TileBias {
  static constexpr int own = bias_of == BiasOf::columns ? (tile_n + threads - 1) / threads : 2;

  float values[own];  // of columns; or of the two rows that the thread has

  // Starts to read it. `first_m` is the thread's first row, `first_n` the tile's first column.
  template <typename Epilogue>
  __device__ __forceinline__ void read(const Epilogue& epilogue, int first_m, int first_n, int end_m, int end_n,
                                       int thread) {
    if constexpr (bias_of == BiasOf::columns) {
#pragma unroll
      for (int i = 0; i < own; ++i) values[i] = epilogue.bias_at(min(first_n + thread + i * threads, end_n - 1));
    } else if constexpr (bias_of == BiasOf::rows) {
#pragma unroll
      for (int h = 0; h < 2; ++h) values[h] = epilogue.bias_at(min(first_m + 8 * h, end_m - 1));
    }
  }

  __device__ __forceinline__ void put_columns(float* shared, int thread) const {
    if constexpr (bias_of == BiasOf::columns) {
#pragma unroll
      for (int i = 0; i < own; ++i)
        if (thread + i * threads < tile_n)
          shared[thread + i * threads] = values[i];
    }
  }
};

// Applies the epilogue to the elements that a thread has of a tile: see Fragment for their order.
template <typename Epilogue>
class TileEpilogue {
  static constexpr bool adds_at_once = has_residual && !Epilogue::is_in_two_steps;

  Epilogue epilogue_;
  const int end_m_, end_n_;
  const float* const column_bias_;  // of the thread's first column
  float row_bias_[2] = {};
  int first_m_ = 0, first_n_ = 0;  // the thread's

  // Where the thread's rows of the residual begin.
  struct RowStarts {
    const Residual* first[2];
  };
  __device__ __forceinline__ RowStarts residual_rows() const {
    if constexpr (has_residual)
      return {epilogue_.residual_at(first_m_, first_n_), epilogue_.residual_at(first_m_ + 8, first_n_)};
    else
      return {};
  }
  // Of the pair of columns that is the j-th of the thread, in its row h.
  __device__ __forceinline__ Vector<Residual, 2> residuals(const RowStarts& rows, int j, int h) const {
    Vector<Residual, 2> found = {};
    if (first_m_ + 8 * h < end_m_ && first_n_ + 8 * j < end_n_)
      found = epilogue_.residuals(rows.first[h], 8 * j, first_n_ + 8 * j + 1 < end_n_);
    return found;
  }

 public:
  __device__ __forceinline__ TileEpilogue(const plan::EpilogueParameters& p, int end_m, int end_n,
                                          const float* column_bias)
      : epilogue_(p), end_m_(end_m), end_n_(end_n), column_bias_(column_bias + threadIdx.x % 4 * 2) {}

  template <typename Bias>
  __device__ __forceinline__ void read_bias(Bias& bias, int first_m, int first_n, int thread) const {
    bias.read(epilogue_, first_m, first_n, end_m_, end_n_, thread);
  }

  // The next results are those of the tile of this matrix and bias from this row of the thread and this column on.
  template <typename Bias>
  __device__ __forceinline__ void move_to(const BatchIndex& batch, int first_m, int first_n, const Bias& bias) {
    epilogue_.move_to(batch.at);
    first_m_ = first_m;
    first_n_ = first_n + threadIdx.x % 4 * 2;
    if constexpr (bias_of == BiasOf::rows) {
      row_bias_[0] = bias.values[0];
      row_bias_[1] = bias.values[1];
    }
  }

  // The residual from an element on, whose lines may be read together.
  template <typename Rows>
  __device__ __forceinline__ Rows residual_from(const BatchIndex& batch, int m, int n) const {
    Epilogue epilogue = epilogue_;
    epilogue.move_to(batch.at);
    return {epilogue.residual_at(m, n), epilogue.residual_step_m(), end_m_ - m, end_n_ - n};
  }

  // The first step, for `columns` columns from `first` on.
  template <int first, int columns, int elements>
  __device__ __forceinline__ void begin(float (&sum)[elements]) const {
    const RowStarts rows = residual_rows();
    begin<first, columns>(sum, [&](int j, int h) { return residuals(rows, j, h); });
  }
  // The same with the pairs of the residual from elsewhere.
  template <int first, int columns, int elements, typename Pairs>
  __device__ __forceinline__ void begin(float (&sum)[elements], const Pairs& pairs) const {
#pragma unroll
    for (int j = first / 8; j < (first + columns) / 8; ++j) {
      Vector<float, 2> of_columns = {};
      if constexpr (bias_of == BiasOf::columns)
        of_columns = *reinterpret_cast<const Vector<float, 2>*>(column_bias_ + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Vector<Residual, 2> residual = {};
        if constexpr (adds_at_once)
          residual = pairs(j, h);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = sum[4 * j + 2 * h + e];
          const float bias = bias_of == BiasOf::rows ? row_bias_[h] : of_columns.element[e];
          if constexpr (adds_at_once)
            x = epilogue_.before_activation(x, bias, residual.element[e]);
          else
            x = epilogue_.before_activation(x, bias);
        }
      }
    }
  }

  // The second step, of results that are not rounded yet.
  template <int first, int columns, int elements>
  __device__ __forceinline__ void end(float (&results)[elements]) const {
    const RowStarts rows = residual_rows();
#pragma unroll
    for (int j = first / 8; j < (first + columns) / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Vector<Residual, 2> residual = {};
        if constexpr (has_residual)
          residual = residuals(rows, j, h);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = results[4 * j + 2 * h + e];
          x = has_residual ? epilogue_.after(x, residual.element[e]) : epilogue_.after(x);
        }
      }
  }

  // The second step, of neighbours in a line that are rounded already, from row m and column n on.
  template <typename Output, bool along_m>
  __device__ __forceinline__ Vector<unsigned, 4> end(const Vector<unsigned, 4>& staged, int m, int n) const {
    constexpr int step_m = along_m ? 2 : 0, step_n = along_m ? 0 : 2;
    Vector<unsigned, 4> stored;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float pair[2] = {widen<float>(Output{static_cast<unsigned short>(staged.element[i])}),
                       widen<float>(Output{static_cast<unsigned short>(staged.element[i] >> 16)})};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int own_m = m + i * step_m + e * step_m / 2, own_n = n + i * step_n + e * step_n / 2;
        if constexpr (has_residual)
          pair[e] = epilogue_.after(
              pair[e], own_m < end_m_ && own_n < end_n_ ? *epilogue_.residual_at(own_m, own_n) : Residual{});
        else
          pair[e] = epilogue_.after(pair[e]);
      }
      stored.element[i] = narrow_pair<Output>(pair[0], pair[1]);
    }
    return stored;
  }
};

}  // namespace tilesmith
