// What a block does with a few rows of an operand.
#pragma once

#include "batch.cuh"
#include "census.cuh"
#include "element.cuh"
#include "kernels/split/types.cuh"
#include "plane_pair.cuh"
#include "powers.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "vector.cuh"

namespace tilesmith {

// `Strip`: how its threads divide them.
template <typename Strip>
class Task {
  static constexpr bool mn_major = Strip::mn_major;
  static constexpr int own_rows = Strip::own_rows;
  using Source = typename Strip::Source;
  using Values = Vector<Source, vector>;

  const Operand& o_;
  const Source* from_;  // this thread's first value
  unsigned short* to_;  // and where it goes
  long long from_step_, to_step_, to_plane_;
  long long scales_;  // of this strip
  int first_row_;
  int row_;  // the first of this thread, in the strip
  int first_k_, end_k_;
  const unsigned task_;
  const int slab_;
  const int line_ = threadIdx.x / Strip::lanes;
  const int in_line_ = threadIdx.x % Strip::lanes;

 public:
  __device__ __forceinline__ Task(const Operand& o, unsigned task, int slab) : o_(o), task_(task), slab_(slab) {
    unsigned matrix = task / o.strips;
    first_row_ = static_cast<int>(task - matrix * o.strips) * Strip::rows;
    row_ = mn_major ? in_line_ * vector : line_;
    first_k_ = slab * o.slab_depth;
    end_k_ = min(first_k_ + o.slab_depth, o.plane_depth);
    const long long row = first_row_ + row_, k = first_k_ + own_k();
    from_ = static_cast<const Source*>(o.from) + row * o.row_stride + k * o.k_stride;
    to_ = o.to + matrix * o.matrix_pitch + (mn_major ? k * o.pitch + row : row * o.pitch + k);
    from_step_ = Strip::step * o.k_stride;
    to_step_ = mn_major ? Strip::step * o.pitch : Strip::step;
    to_plane_ = mn_major ? o.plane_depth * o.pitch : o.plane_depth;
    scales_ = static_cast<long long>(matrix) * o.scale_pitch + first_row_;
#pragma unroll
    for (int d = 0; d < plan::batch_rank; ++d) {
      from_ += matrix % o.batch_size[d] * o.batch_stride[d];
      matrix /= o.batch_size[d];
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

    Tally tally = {};
    Extent extent = Extent::none();
    for_each_step(
        first,
        [&](unsigned short* to, const Floats& x, int k) {
          split(to, x, factor, tally);
          if constexpr (Strip::finds_extents)
            extent.note(x, k);
        },
        [&](const Batch& x) { tally.flush(x, undo); });
    if constexpr (Strip::finds_extents)
      join(extent, shared.extent[parity]);
    if (tally.special)
      atomicMax(&shared.census.beyond, Census::special);
    share(
        tally.peak, shared.peak[parity], [](unsigned a, unsigned b) { return max(a, b); },
        [](unsigned* at, unsigned value) { atomicMax(at, value); });
    const auto sum = [](unsigned a, unsigned b) { return a + b; };
    const auto add = [](int* at, unsigned value) { atomicAdd(at, static_cast<int>(value)); };
    share(tally.large, shared.large[parity], sum, add);
    share(tally.lossy, shared.lossy[parity], sum, add);
    __syncthreads();
    count_rows(shared, parity);
    if (Strip::finds_extents && threadIdx.x == 0)
      o_.extents[task_ * Strip::slabs + slab_] = shared.extent[parity];
  }

  // `special`: there are infinities or NaNs, and so somebody who reads the plane that tells them.
  __device__ __forceinline__ void run_wide(bool special) const {
    WideFactor factor[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i)
      factor[i] = WideFactor(-exponent_for_all(row_ + i, first_k_ == 0 && (mn_major ? line_ : in_line_) == 0));
    for_each_step(
        load_batch(first_k_, from_),
        [&](unsigned short* to, const Floats& x, int) { split_wide(to, x, factor, special); }, [](const Batch&) {});
  }

  // No planes at all: the product makes its own, and needs no more than scales.
  __device__ __forceinline__ void run_for_scales(Shared& shared, int parity) const {
    clear(shared, parity);
    __syncthreads();
    sample(shared, parity);
    __syncthreads();
    keep_factors(shared, parity);
  }
  __device__ __forceinline__ void run_for_wide_scales() const {
    if (threadIdx.x < Strip::rows)
      exponent_for_all(threadIdx.x, true);
  }

 private:
  __device__ __forceinline__ int own_k() const { return mn_major ? line_ : in_line_ * vector; }

  // What a thread reads at once: its part of a few steps.
  struct Batch {
    Values step[Strip::at_once];
  };
  static constexpr int batch_depth = Strip::at_once * Strip::step;

  // What a thread counts of its rows.
  struct Tally {
    unsigned peak[own_rows];   // of the finite values as they are
    unsigned large[own_rows];  // in 32nds
    unsigned lossy[own_rows];
    bool special;  // an infinity or a NaN
    // Of the last few steps, as pairs of float16.
    unsigned large_pairs[vector / 2];
    unsigned peak_pairs[vector / 2];

    // Adds what the pairs have counted of these values to the rest.
    __device__ __forceinline__ void flush(const Batch& x, const float (&undo)[own_rows]) {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const float size = half_of(peak_pairs, i);
        large[i % own_rows] += static_cast<unsigned>(half_of(large_pairs, i));
        if (0x1p-14f <= size && size < 65504.0f)
          peak[i % own_rows] = max(peak[i % own_rows], __float_as_uint(size * undo[i % own_rows]));
        else
          for (int step = 0; step < Strip::at_once; ++step) {
            const unsigned exact = size_of(widen<float>(x.step[step].element[i]));
            special |= exact >= infinity;
            peak[i % own_rows] = max(peak[i % own_rows], exact < infinity ? exact : 0);
          }
      }
#pragma unroll
      for (int i = 0; i < vector / 2; ++i) large_pairs[i] = peak_pairs[i] = 0;
    }

    static __device__ __forceinline__ float half_of(const unsigned (&pairs)[vector / 2], int i) {
      return ptx::half_to_float(static_cast<unsigned short>(pairs[i / 2] >> i % 2 * 16));
    }
  };

  __device__ __forceinline__ void clear(Shared& shared, int parity) const {
    if (threadIdx.x < most_rows) {
      shared.peak[parity][threadIdx.x] = 0;
      shared.large[parity][threadIdx.x] = 0;
      shared.lossy[parity][threadIdx.x] = 0;
      shared.sample[parity][threadIdx.x] = 0;
      shared.fine[parity][threadIdx.x] = 0;
      if (threadIdx.x == 0)
        shared.strip_sample[parity] = 0;
      if (Strip::finds_extents && threadIdx.x == 0)
        shared.extent[parity] = Extent::none();
    }
  }

  // Where a row is sampled: a quarter of the samples at each end of K, where triangles have values in every row, and
  // the others spread over all of it.
  static __device__ __forceinline__ int sampled_k(int which, int depth) {
    constexpr int edge = Strip::samples / 4, spread = Strip::samples - 2 * edge;
    if (which < edge)
      return min(which, depth - 1);
    if (which >= Strip::samples - edge)
      return max(depth - Strip::samples + which, 0);
    return static_cast<int>((2 * (which - edge) + 1LL) * depth / (2 * spread));
  }

  // Finds the largest of a few values of each row, and whether one of them has more than 16 bits.
  __device__ __forceinline__ void sample(Shared& shared, int parity) const {
    constexpr unsigned past_16_bits = 0xff;
    unsigned most[own_rows] = {}, fine[own_rows] = {};
    const int which = mn_major ? line_ : in_line_;
    if (which < Strip::samples) {
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
    share(most, shared.sample[parity], larger, [&](unsigned* at, unsigned value) {
      atomicMax(at, value);
      atomicMax(&shared.strip_sample[parity], value);
    });
    if constexpr (Strip::makes_up)
      share(fine, shared.fine[parity], larger, [](unsigned* at, unsigned value) { atomicMax(at, value); });
  }

  // A row whose sample is all zeros has its neighbours' scale.
  __device__ __forceinline__ unsigned sampled(const Shared& shared, int parity, int row) const {
    return shared.sample[parity][row] ? shared.sample[parity][row] : shared.strip_sample[parity];
  }

  __device__ __forceinline__ void keep_factors(const Shared& shared, int parity) const {
    if (threadIdx.x < Strip::rows && first_row_ + static_cast<int>(threadIdx.x) < o_.rows) {
      const float factor = power_of_two(-scale_exponent(sampled(shared, parity, threadIdx.x)));
      const bool makes_up = Strip::makes_up && shared.fine[parity][threadIdx.x];
      o_.factors[scales_ + threadIdx.x] = makes_up ? factor * 0x1.000002p0f : factor;
    }
  }

  // The exponent of two that undoes the scale of a row's wide planes, from what the parts of K found, each for itself.
  __device__ __forceinline__ int exponent_for_all(int row, bool keep) const {
    if (first_row_ + row >= o_.rows)
      return 0;
    const long long at = scales_ + row;
    int undoes = o_.slab_exponents[at];
#pragma unroll 4
    for (int part = 1; part < Strip::parts; ++part)
      undoes = max(undoes, o_.slab_exponents[part * static_cast<long long>(o_.slab_pitch) + at]);
    if (undoes == no_exponent)
      undoes = 0;
    if (keep)
      o_.wide_exponents[at] = undoes;
    return undoes;
  }

  // Four values side by side along a line, or as many of them as are left.
  __device__ __forceinline__ Values load(const Source* at, int left) const {
    Values x = {};
    if (Strip::access == Access::vectors && left >= vector)
      return *reinterpret_cast<const Values*>(at);
    const long long stride = Strip::access == Access::strided ? (mn_major ? o_.row_stride : o_.k_stride) : 1;
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
    return first_row_ + Strip::rows <= o_.rows && k + batch_depth <= min(o_.depth, end_k_);
  }

  __device__ __forceinline__ Batch load_batch(int k, const Source* from) const {
    Batch x;
    if (is_inside(k)) {
#pragma unroll
      for (int i = 0; i < Strip::at_once; ++i) x.step[i] = load(from + i * from_step_, vector);
    } else {
      const int row = first_row_ + row_;
#pragma unroll
      for (int i = 0; i < Strip::at_once; ++i) {
        const int at = k + own_k() + i * Strip::step;
        const int left = mn_major ? (at < o_.depth ? o_.rows - row : 0) : (row < o_.rows ? o_.depth - at : 0);
        x.step[i] = load(from + i * from_step_, at < end_k_ ? left : 0);
      }
    }
    return x;
  }

  // Calls `take` with all that a thread has of the strip, where its planes go, and its first K, and `pause` every few
  // times. Reads ahead; `x` is the first that was read.
  template <typename Take, typename Pause>
  __device__ __forceinline__ void for_each_step(Batch x, Take take, Pause pause) const {
    const Source* from = from_;
    unsigned short* to = to_;
    const bool stores = first_row_ + row_ < (mn_major ? static_cast<int>(o_.pitch) : o_.rows);
    for (int k = first_k_; k < end_k_; k += batch_depth) {
      from += Strip::at_once * from_step_;
      const Batch next = load_batch(k + batch_depth, from);
      const bool all = is_inside(k);
#pragma unroll
      for (int i = 0; i < Strip::at_once; ++i) {
        if (all || (stores && k + own_k() + i * Strip::step < end_k_))
          take(to, widened(x.step[i]), k + own_k() + i * Strip::step);
        to += to_step_;
      }
      pause(x);
      x = next;
    }
  }

  __device__ __forceinline__ void split(unsigned short* to, const Floats& x, const float (&factor)[own_rows],
                                        Tally& tally) const {
    Plane planes[Strip::planes];
    float left[vector];
    unsigned size[vector / 2];
#pragma unroll
    for (int i = 0; i < vector; i += 2) {
      const auto pair = half_planes<Strip::planes>(x.element[i] * factor[i % own_rows],
                                                   x.element[i + 1] * factor[(i + 1) % own_rows]);
#pragma unroll
      for (int p = 0; p < Strip::planes; ++p) planes[p].element[i / 2] = pair.plane[p];
      left[i] = pair.left[0];
      left[i + 1] = pair.left[1];
    }
    store(to, planes);
#pragma unroll
    for (int i = 0; i < vector / 2; ++i) {
      size[i] = ptx::half_pair_absolute(planes[0].element[i]);
      tally.peak_pairs[i] = ptx::half_pair_max_or_nan(tally.peak_pairs[i], size[i]);
      tally.large_pairs[i] = ptx::half_pair_add(tally.large_pairs[i], ptx::half_pair_min(size[i], Census::large_pair));
    }
    const unsigned least = ptx::half_pair_min(size[0], size[1]);
    if (min(least & 0xffff, least >> 16) < safe_half<Strip::planes>) {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const unsigned first = size[i / 2] >> i % 2 * 16 & 0xffff;
        tally.lossy[i % own_rows] += is_lossy<Strip::planes>(first, left[i], x.element[i]);
      }
    }
  }

  __device__ __forceinline__ void split_wide(unsigned short* to, const Floats& x, const WideFactor (&factor)[own_rows],
                                             bool special) const {
    Plane planes[Strip::planes], kinds;
#pragma unroll
    for (int i = 0; i < vector; i += 2) {
      const float low = x.element[i], high = x.element[i + 1];
      const auto pair = bfloat16_planes<Strip::planes>(low, high, factor[i % own_rows], factor[(i + 1) % own_rows]);
#pragma unroll
      for (int p = 0; p < Strip::planes; ++p) planes[p].element[i / 2] = pair.plane[p];
      if (special)
        kinds.element[i / 2] = kind_pair(low, high);
    }
    store(to, planes);
    if (special)
      *reinterpret_cast<Plane*>(to + Strip::planes * to_plane_) = kinds;
  }

  __device__ __forceinline__ void store(unsigned short* to, const Plane (&planes)[Strip::planes]) const {
#pragma unroll
    for (int p = 0; p < Strip::planes; ++p) {
      *reinterpret_cast<Plane*>(to) = planes[p];
      to += to_plane_;
    }
  }

  // Joins the threads' values of a row: first those of a warp, then in shared memory.
  template <typename Joined, typename Join, typename Atomic>
  __device__ __forceinline__ void share(unsigned (&own)[own_rows], Joined* joined, Join join, Atomic atomic) const {
    constexpr int first = mn_major ? Strip::lanes : 1;
    constexpr int past = mn_major ? 32 : Strip::lanes < 32 ? Strip::lanes : 32;
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
#pragma unroll
      for (int distance = first; distance < past; distance *= 2)
        own[i] = join(own[i], __shfl_xor_sync(0xffffffffu, own[i], distance));
      if (mn_major ? threadIdx.x % 32 < Strip::lanes : threadIdx.x % past == 0)
        atomic(&joined[row_ + i], own[i]);
    }
  }

  // Of vectors along K only the first place is known: they end in the same step of the product.
  static __device__ __forceinline__ void join(Extent own, Extent& joined) {
    own.add_lanes();
    if (threadIdx.x % 32 == 0) {
      atomicMin(&joined.first, own.first);
      atomicMax(&joined.end, own.end);
    }
  }

  __device__ __forceinline__ void count_rows(Shared& shared, int parity) const {
    const int row = threadIdx.x;
    if (row >= Strip::rows || first_row_ + row >= o_.rows)
      return;
    const unsigned peak = shared.peak[parity][row];
    const unsigned sample = sampled(shared, parity, row);
    o_.slab_exponents[slab_ * static_cast<long long>(o_.slab_pitch) + scales_ + row] =
        wide_undoing_exponent(peak, o_.depth);
    if (peak == 0 && Strip::slabs == 1)
      return;  // a row of zeros is exact
    const float scaled_peak = __uint_as_float(peak) * power_of_two(scale_exponent(sample));
    atomicMin(&shared.census.least_large, shared.large[parity][row] / Census::large);
    atomicMax(&shared.census.most_lossy, shared.lossy[parity][row]);
    atomicMax(&shared.census.peak, __float_as_int(scaled_peak));
    if (scaled_peak >= 65504.0f)
      atomicMax(&shared.census.beyond, Census::too_large);
  }
};

}  // namespace tilesmith
