// The epilogue of a consumer's part of a tile: see kernels/epilogue.cuh.
#pragma once

#include "kernels/epilogue.cuh"
#include "tile.cuh"
#include "tile_store.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr Activation activation = plan::activation;
constexpr bool is_in_two_steps = activation != Activation::none;
constexpr bool bias_of_rows = plan::out_along_m;  // biases run along the lines of the output
constexpr bool has_residual = plan::residual_vector > 0;
constexpr bool adds_first = has_residual && !is_in_two_steps;  // in the first step

// The bias of a tile. That of the columns goes to shared memory; a thread has no registers for all of it.
template <int tile_n, int threads>
struct TileBias {
  static constexpr int own = bias_of_rows ? 2 : (tile_n + threads - 1) / threads;

  float values[own];  // of columns; or of the two rows that the thread has

  // Starts to read it. `first_m` is the thread's first row, `first_n` the tile's first column.
  template <typename Epilogue>
  __device__ __forceinline__ void read(const Epilogue& epilogue, int first_m, int first_n, int end_m, int end_n,
                                       int thread) {
    constexpr int step = bias_of_rows ? 8 : threads;
    const int first = bias_of_rows ? first_m : first_n + thread, last = (bias_of_rows ? end_m : end_n) - 1;
#pragma unroll
    for (int i = 0; i < own; ++i) values[i] = epilogue.bias_at(min(first + i * step, last));
  }

  __device__ __forceinline__ void put_columns(float* shared, int thread) const {
    if constexpr (!bias_of_rows)
#pragma unroll
      for (int i = 0; i < own; ++i)
        if (thread + i * threads < tile_n)
          shared[thread + i * threads] = values[i];
  }
};

// Applies the epilogue to the elements that a thread has of a tile: see Fragment for their order.
template <typename Output, typename Epilogue>
class TileEpilogue {
  Epilogue epilogue_;
  const int end_m_, end_n_;
  const float* const column_bias_;  // of the thread's first column
  float row_bias_[2] = {};
  int first_m_ = 0, first_n_ = 0;  // the thread's

  // Where the thread's rows of the residual begin.
  struct RowStarts {
    const Output* first[2];
  };
  __device__ __forceinline__ RowStarts residual_rows() const {
    return {epilogue_.residual_from(first_m_, first_n_), epilogue_.residual_from(first_m_ + 8, first_n_)};
  }
  // Of the pair of columns that is the j-th of the thread, in its row h.
  __device__ __forceinline__ Vector<Output, 2> residuals(const RowStarts& rows, int j, int h) const {
    Vector<Output, 2> found = {};
    if (first_m_ + 8 * h < end_m_ && first_n_ + 8 * j < end_n_) {
      if constexpr (plan::residual_vector > 1) {
        found = *reinterpret_cast<const Vector<Output, 2>*>(rows.first[h] + 8 * j);
      } else {
        const Output* const own = rows.first[h] + 8 * j * epilogue_.residual_step_n();
        found = {own[0], first_n_ + 8 * j + 1 < end_n_ ? own[epilogue_.residual_step_n()] : Output{}};
      }
    }
    return found;
  }
  // Of neighbours in a line from an element on: by one access if they are neighbours in memory, too.
  static constexpr int per_vector = 16 / sizeof(Output);
  template <bool along_m>
  __device__ __forceinline__ Vector<Output, per_vector> residual_along(int m, int n) const {
    using Together = Vector<Output, per_vector>;
    const Output* const first = epilogue_.residual_from(m, n);
    const long long step = along_m ? epilogue_.residual_step_m() : epilogue_.residual_step_n();
    const int left = m < end_m_ && n < end_n_ ? (along_m ? end_m_ - m : end_n_ - n) : 0;
    if (step == 1 && left >= per_vector && reinterpret_cast<unsigned long long>(first) % sizeof(Together) == 0)
      return *reinterpret_cast<const Together*>(first);
    Together found = {};
#pragma unroll
    for (int i = 0; i < per_vector; ++i)
      if (i < left)
        found.element[i] = first[i * step];
    return found;
  }
  __device__ __forceinline__ float added(float x, Output residual) const {
    return epilogue_.with_residual(x, widen<float>(residual));
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
    if constexpr (bias_of_rows) {
      row_bias_[0] = bias.values[0];
      row_bias_[1] = bias.values[1];
    }
  }

  // The residual from an element on, whose lines may be read together.
  template <typename Rows>
  __device__ __forceinline__ Rows residual_from(const BatchIndex& batch, int m, int n) const {
    Epilogue epilogue = epilogue_;
    epilogue.move_to(batch.at);
    return {epilogue.residual_from(m, n), epilogue.residual_step_m(), end_m_ - m, end_n_ - n};
  }

  // Whether the residual's rows are contiguous.
  __device__ __forceinline__ bool has_rows_of_residual() const { return epilogue_.residual_step_n() == 1; }

  // The first step, for `columns` columns from `first` on.
  template <int first, int columns, int elements>
  __device__ __forceinline__ void begin(float (&sum)[elements]) const {
    if constexpr (adds_first) {
      const RowStarts rows = residual_rows();
      begin<first, columns>(sum, [&](int j, int h) { return residuals(rows, j, h); });
    } else {
      begin<first, columns>(sum, [](int, int) { return Vector<Output, 2>{}; });
    }
  }
  // The same with the pairs of the residual from elsewhere.
  template <int first, int columns, int elements, typename Pairs>
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
          if constexpr (adds_first)
            x = added(x, residual.element[e]);
        }
      }
    }
  }

  // The second step, of results that are not rounded yet.
  template <int first, int columns, int elements>
  __device__ __forceinline__ void end(float (&results)[elements]) const {
#pragma unroll
    for (int i = first / 2; i < (first + columns) / 2; ++i)
      results[i] = Epilogue::template with_activation<activation>(results[i]);
    if constexpr (!has_residual)
      return;
    const RowStarts rows = residual_rows();
#pragma unroll
    for (int j = first / 8; j < (first + columns) / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Vector<Output, 2> residual = residuals(rows, j, h);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = results[4 * j + 2 * h + e];
          x = added(x, residual.element[e]);
        }
      }
  }

  // The second step, of neighbours in a line that are rounded already, from row m and column n on.
  template <bool along_m>
  __device__ __forceinline__ Vector<unsigned, 4> end(const Vector<unsigned, 4>& staged, int m, int n) const {
    Vector<Output, per_vector> residual;
    if constexpr (has_residual)
      residual = residual_along<along_m>(m, n);
    Vector<unsigned, 4> stored;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float pair[2] = {widen<float>(Output{static_cast<unsigned short>(staged.element[i])}),
                       widen<float>(Output{static_cast<unsigned short>(staged.element[i] >> 16)})};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        pair[e] = Epilogue::template with_activation<activation>(pair[e]);
        if constexpr (has_residual)
          pair[e] = added(pair[e], residual.element[2 * i + e]);
      }
      stored.element[i] = narrow_pair<Output>(pair[0], pair[1]);
    }
    return stored;
  }
};

}  // namespace tilesmith
