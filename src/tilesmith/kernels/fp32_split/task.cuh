// What a block does with a few rows of an operand.
#pragma once

#include "batch.cuh"
#include "element.cuh"
#include "kernels/fp32_split/powers.cuh"
#include "kernels/fp32_split/range_check.cuh"
#include "kernels/fp32_split/row_counts.cuh"
#include "kernels/fp32_split/term_pair.cuh"
#include "kernels/fp32_split/types.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "vector.cuh"

namespace tilesmith {

template <typename Kind>
class Task {
  static constexpr bool mn_major = Kind::mn_major;
  static constexpr int own_rows = Kind::own_rows;
  using Source = typename Kind::Source;
  using Values = Vector<Source, vector>;
  using Batch = BatchOf<Kind>;
  using Counts = RowCounts<Kind>;

  const Operand& o_;
  const Source* from_;  // this thread's first value
  unsigned short* to_;  // and where it goes
  long long from_step_, to_step_, to_term_;
  long long scales_;  // of this row block
  int first_row_;
  int row_;  // the first of this thread, in the row block
  int first_k_, end_k_;
  const unsigned task_;
  const int k_chunk_;
  const int line_, in_line_;

 public:
  __device__ __forceinline__ Task(const Operand& o, unsigned task, int k_chunk)
      : o_(o),
        task_(task),
        k_chunk_(k_chunk),
        line_(threadIdx.x >> Kind::log2_lanes(o)),
        in_line_(threadIdx.x & (Kind::lanes(o) - 1)) {
    unsigned matrix = task / o.row_blocks;
    first_row_ = static_cast<int>(task - matrix * o.row_blocks) * Kind::rows(o_);
    row_ = mn_major ? in_line_ * vector : line_;
    first_k_ = k_chunk * o.k_chunk_depth;
    end_k_ = min(first_k_ + o.k_chunk_depth, o.term_depth);
    const long long row = first_row_ + row_, k = first_k_ + own_k();
    from_ = static_cast<const Source*>(o.source) + row * o.row_stride + k * o.k_stride;
    to_ = o.target + matrix * o.matrix_pitch + (mn_major ? k * o.pitch + row : row * o.pitch + k);
    from_step_ = Kind::step(o_) * o.k_stride;
    to_step_ = mn_major ? Kind::step(o_) * o.pitch : Kind::step(o_);
    to_term_ = mn_major ? o.term_depth * o.pitch : o.term_depth;
    scales_ = static_cast<long long>(matrix) * o.scale_pitch + first_row_;
    if (matrix < o.batch_size[0]) {
      from_ += matrix * o.batch_stride[0];
    } else {
#pragma unroll 1
      for (int d = 0; d < max_batch_dims; ++d) {
        from_ += matrix % o.batch_size[d] * o.batch_stride[d];
        matrix /= o.batch_size[d];
      }
    }
  }

  __device__ __forceinline__ void run(Shared& shared, int parity) {
    Batch first = load_batch(first_k_, from_);  // under way while the scales are found
    clear(shared, parity);
    __syncthreads();
    sample(shared, parity);
    __syncthreads();
    float factor[own_rows], undo[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      const int exponent = scale_exponent(sampled(shared, parity, row_ + i));
      factor[i] = power_of_two(exponent);
      undo[i] = power_of_two(-exponent);
    }
    if (first_k_ == 0)
      keep_factors(shared, parity);

    Counts counts = {};
    Extent extent = Extent::none();
    for_each_step(
        first,
        [&](unsigned short* to, const Floats& x, int k) {
          split(to, x, factor, counts);
          if constexpr (plan::finds_extents)
            extent.note(x, k);
        },
        [&](const Batch& x) { counts.flush(x, undo); });
    if constexpr (plan::finds_extents)
      join(extent, shared.extent[parity]);
    if (counts.special)
      atomicMax(&shared.range_stats.beyond, RangeStats::special);
    share<mn_major>(
        counts.peak, Kind::lanes(o_), shared.peak[parity], row_, [](unsigned a, unsigned b) { return max(a, b); },
        [](unsigned* at, unsigned value) { atomicMax(at, value); });
    const auto sum = [](unsigned a, unsigned b) { return a + b; };
    const auto add = [](int* at, unsigned value) { atomicAdd(at, static_cast<int>(value)); };
    unsigned large[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i) large[i] = static_cast<unsigned>(counts.large[i]);
    share<mn_major>(large, Kind::lanes(o_), shared.large[parity], row_, sum, add);
    share<mn_major>(counts.inexact, Kind::lanes(o_), shared.inexact[parity], row_, sum, add);
    __syncthreads();
    count_rows(shared, parity);
    if (plan::finds_extents && threadIdx.x == 0)
      o_.extents[(task_ << o_.log2_k_chunks) + k_chunk_] = shared.extent[parity];
  }

  // `special`: there are infinities or NaNs, and so somebody who reads the term that tells them.
  __device__ __forceinline__ void run_full_range(bool special) const {
    WideFactor factor[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i)
      factor[i] = WideFactor(-exponent_for_all(row_ + i, first_k_ == 0 && (mn_major ? line_ : in_line_) == 0));
    for_each_step(
        load_batch(first_k_, from_),
        [&](unsigned short* to, const Floats& x, int) { split_wide(to, x, factor, special); }, [](const Batch&) {});
  }

  // No terms at all: the product makes its own, and needs no more than scales.
  __device__ __forceinline__ void run_for_scales(Shared& shared, int parity) const {
    clear(shared, parity);
    __syncthreads();
    sample(shared, parity);
    __syncthreads();
    keep_factors(shared, parity);
  }
  __device__ __forceinline__ void run_for_full_range_scales() const {
    if (static_cast<int>(threadIdx.x) < Kind::rows(o_))
      exponent_for_all(threadIdx.x, true);
  }

 private:
  __device__ __forceinline__ int own_k() const { return mn_major ? line_ : in_line_ * vector; }

  // Where a row is sampled: a quarter of the samples at each end of K, where triangles have values in every row, and
  // the others spread over all of it.
  __device__ __forceinline__ int sampled_k(int which, int depth) const {
    const int edge = Kind::samples(o_) / 4;
    if (which < edge)
      return min(which, depth - 1);
    if (which >= Kind::samples(o_) - edge)
      return max(depth - Kind::samples(o_) + which, 0);
    return static_cast<int>((2 * (which - edge) + 1LL) * depth >> Kind::log2_samples(o_));
  }

  // Finds the largest of a few values of each row, and whether one of them has more than 16 bits.
  __device__ __forceinline__ void sample(Shared& shared, int parity) const {
    constexpr unsigned past_16_bits = 0xff;
    unsigned most[own_rows] = {}, fine[own_rows] = {};
    const int which = mn_major ? line_ : in_line_;
    if (which < Kind::samples(o_)) {
      const Source* at = from_ + (sampled_k(which, o_.depth) - first_k_ - own_k()) * o_.k_stride;
#pragma unroll
      for (int j = 0; j < own_rows; ++j)
        if (first_row_ + row_ + j < o_.rows) {
          const unsigned size = size_of(widen<float>(at[j * o_.row_stride]));
          most[j] = size < infinity ? size : 0;
          fine[j] = most[j] & past_16_bits;
        }
    }
    const auto larger = [](unsigned a, unsigned b) { return max(a, b); };
    share<mn_major>(most, Kind::lanes(o_), shared.sample[parity], row_, larger, [&](unsigned* at, unsigned value) {
      atomicMax(at, value);
      atomicMax(&shared.block_sample[parity], value);
    });
    if (o_.corrects_bias)
      share<mn_major>(fine, Kind::lanes(o_), shared.fine[parity], row_, larger,
                      [](unsigned* at, unsigned value) { atomicMax(at, value); });
  }

  // A row whose sample is all zeros has its neighbours' scale.
  __device__ __forceinline__ unsigned sampled(const Shared& shared, int parity, int row) const {
    return shared.sample[parity][row] ? shared.sample[parity][row] : shared.block_sample[parity];
  }

  __device__ __forceinline__ void keep_factors(const Shared& shared, int parity) const {
    if (static_cast<int>(threadIdx.x) < Kind::rows(o_) && first_row_ + static_cast<int>(threadIdx.x) < o_.rows) {
      const float factor = power_of_two(-scale_exponent(sampled(shared, parity, threadIdx.x)));
      const bool corrects_bias = o_.corrects_bias && shared.fine[parity][threadIdx.x];
      o_.factors[scales_ + threadIdx.x] = corrects_bias ? factor * 0x1.000002p0f : factor;
    }
  }

  // The exponent of two that undoes the scale of a row's full-range terms, from what the parts of K found, each for
  // itself.
  __device__ __forceinline__ int exponent_for_all(int row, bool keep) const {
    if (first_row_ + row >= o_.rows)
      return 0;
    const long long at = scales_ + row;
    int undoes = o_.k_chunk_exponents[at];
#pragma unroll 4
    for (int part = 1; part < o_.parts; ++part)
      undoes = max(undoes, o_.k_chunk_exponents[part * static_cast<long long>(o_.k_chunk_pitch) + at]);
    if (undoes == no_exponent)
      undoes = 0;
    if (keep)
      o_.full_range_exponents[at] = undoes;
    return undoes;
  }

  // Four values side by side along a line, or as many of them as are left.
  __device__ __forceinline__ Values load(const Source* at, int left) const {
    Values x = {};
    constexpr bool is_known = Kind::access != Access::any;
    if ((is_known ? Kind::access == Access::vectors : o_.has_vectors) && left >= vector)
      return *reinterpret_cast<const Values*>(at);
    constexpr bool is_strided = Kind::access == Access::strided || Kind::access == Access::any;
    const long long stride = is_strided ? (mn_major ? o_.row_stride : o_.k_stride) : 1;
#pragma unroll
    for (int i = 0; i < vector; ++i)
      if (i < left)
        x.element[i] = at[i * stride];
    return x;
  }

  static __device__ __forceinline__ Floats widened(const Values& x) {
    Floats wide;
#pragma unroll
    for (int i = 0; i < vector; ++i) wide.element[i] = widen<float>(x.element[i]);
    return wide;
  }

  // Whether a batch is all inside of the operand, for all threads.
  __device__ __forceinline__ bool is_inside(int k) const {
    return first_row_ + Kind::rows(o_) <= o_.rows && k + Kind::at_once * Kind::step(o_) <= min(o_.depth, end_k_);
  }

  __device__ __forceinline__ Batch load_batch(int k, const Source* from) const {
    Batch x;
    if (is_inside(k)) {
#pragma unroll
      for (int i = 0; i < Kind::at_once; ++i) x.step[i] = load(from + i * from_step_, vector);
    } else {
      const int row = first_row_ + row_;
#pragma unroll
      for (int i = 0; i < Kind::at_once; ++i) {
        const int at = k + own_k() + i * Kind::step(o_);
        const int left = mn_major ? (at < o_.depth ? o_.rows - row : 0) : (row < o_.rows ? o_.depth - at : 0);
        x.step[i] = load(from + i * from_step_, at < end_k_ ? left : 0);
      }
    }
    return x;
  }

  // Calls `take` with all that a thread has of the row block, where its terms go, and its first K, and `pause` every
  // few times. Reads ahead; `x` is the first that was read.
  template <typename Take, typename Pause>
  __device__ __forceinline__ void for_each_step(Batch x, Take take, Pause pause) const {
    const Source* from = from_;
    unsigned short* to = to_;
    const bool stores = first_row_ + row_ < (mn_major ? static_cast<int>(o_.pitch) : o_.rows);
    for (int k = first_k_; k < end_k_; k += Kind::at_once * Kind::step(o_)) {
      from += Kind::at_once * from_step_;
      const Batch next = load_batch(k + Kind::at_once * Kind::step(o_), from);
      const bool all = is_inside(k);
#pragma unroll
      for (int i = 0; i < Kind::at_once; ++i) {
        if (all || (stores && k + own_k() + i * Kind::step(o_) < end_k_))
          take(to, widened(x.step[i]), k + own_k() + i * Kind::step(o_));
        to += to_step_;
      }
      pause(x);
      x = next;
    }
  }

  __device__ __forceinline__ void split(unsigned short* to, const Floats& x, const float (&factor)[own_rows],
                                        Counts& counts) const {
    Term terms[Kind::terms];
    float left[vector];
    unsigned size[vector / 2];
#pragma unroll
    for (int i = 0; i < vector; i += 2) {
      const auto pair =
          half_terms<Kind::terms>(x.element[i] * factor[i % own_rows], x.element[i + 1] * factor[(i + 1) % own_rows]);
#pragma unroll
      for (int p = 0; p < Kind::terms; ++p) terms[p].element[i / 2] = pair.term[p];
      left[i] = pair.left[0];
      left[i + 1] = pair.left[1];
    }
    store(to, terms);
#pragma unroll
    for (int i = 0; i < vector / 2; ++i) {
      size[i] = ptx::half_pair_absolute(terms[0].element[i]);
      counts.peak_pairs[i] = ptx::half_pair_max_or_nan(counts.peak_pairs[i], size[i]);
      counts.large_pairs[i] =
          ptx::half_pair_add(counts.large_pairs[i], ptx::half_pair_min(size[i], RangeStats::large_pair));
    }
    const unsigned least = ptx::half_pair_min(size[0], size[1]);
    if (min(least & 0xffff, least >> 16) < safe_half<Kind::terms>) {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const unsigned first = size[i / 2] >> i % 2 * 16 & 0xffff;
        counts.inexact[i % own_rows] += is_inexact<Kind::terms>(first, left[i], x.element[i]);
      }
    }
  }

  __device__ __forceinline__ void split_wide(unsigned short* to, const Floats& x, const WideFactor (&factor)[own_rows],
                                             bool special) const {
    Term terms[Kind::terms], kinds;
#pragma unroll
    for (int i = 0; i < vector; i += 2) {
      const float low = x.element[i], high = x.element[i + 1];
      const auto pair = bfloat16_terms<Kind::terms>(low, high, factor[i % own_rows], factor[(i + 1) % own_rows]);
#pragma unroll
      for (int p = 0; p < Kind::terms; ++p) terms[p].element[i / 2] = pair.term[p];
      if (special)
        kinds.element[i / 2] = kind_pair(low, high);
    }
    store(to, terms);
    if (special)
      *reinterpret_cast<Term*>(to + Kind::terms * to_term_) = kinds;
  }

  __device__ __forceinline__ void store(unsigned short* to, const Term (&terms)[Kind::terms]) const {
#pragma unroll
    for (int p = 0; p < Kind::terms; ++p) {
      *reinterpret_cast<Term*>(to) = terms[p];
      to += to_term_;
    }
  }

  __device__ __forceinline__ void count_rows(Shared& shared, int parity) const {
    const int row = threadIdx.x;
    if (row >= Kind::rows(o_) || first_row_ + row >= o_.rows)
      return;
    const unsigned peak = shared.peak[parity][row];
    const unsigned sample = sampled(shared, parity, row);
    o_.k_chunk_exponents[k_chunk_ * static_cast<long long>(o_.k_chunk_pitch) + scales_ + row] =
        wide_undoing_exponent(peak, o_.depth);
    if (peak == 0 && o_.log2_k_chunks == 0)
      return;  // a row of zeros is exact
    const float scaled_peak = __uint_as_float(peak) * power_of_two(scale_exponent(sample));
    atomicMin(&shared.range_stats.min_large, shared.large[parity][row] / RangeStats::large);
    atomicMax(&shared.range_stats.max_inexact, shared.inexact[parity][row]);
    atomicMax(&shared.range_stats.peak, __float_as_int(scaled_peak));
    if (scaled_peak >= 65504.0f)
      atomicMax(&shared.range_stats.beyond, RangeStats::too_large);
  }
};

}  // namespace tilesmith
