// Splits float32 operands into planes of 16-bit numbers whose sum they are, scaled by a power of two for each row
// (for B: for each column). One launch serves both operands of a product.
//
//   plan::wide false   float16 planes, two of them (or one): enough for ordinary values. A census tells whether
//                      these are ordinary.
//   plan::wide true    bfloat16 planes, three for all of float32's bits, and for values of any size; and one
//                      more that tells infinities and NaNs from other numbers. Runs only where the others do not do.
//
// The planes have the layout of the operand: they are made of lines that run along K (K-major) or along the rows
// (MN-major), and lie one behind the other along K.
//
// Every value is read once. So the scale comes from a sample of the row: it need not be the best one, since values up
// to 2^7 times the largest of the sample fit, and the census sees whether they do.
//
// A block takes a few rows and all of K. Where K is long it is cut into slabs, with blocks of their own, which count
// for themselves.

#include "batch.cuh"
#include "census.cuh"
#include "ptx/convert.cuh"
#include "ptx/grid.cuh"
#include "ptx/half.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int vector = 4;
constexpr int most_rows = 64;
constexpr int stored_planes = plan::planes + (plan::wide ? 1 : 0);
constexpr unsigned infinity = 0x7f800000u;
constexpr int no_exponent = -(1 << 20);  // of zeros

using Floats = Vector<float, vector>;
using Plane = Vector<unsigned, vector / 2>;  // pairs of 16-bit numbers

struct Operand {
  const float* from;
  unsigned short* to;
  float* factors;       // for each row, what undoes its scale
  int* wide_exponents;  // for each row, the exponent of two that undoes the scale of the wide planes
  int* slab_exponents;  // what that would be for each slab alone
  long long row_stride, k_stride;
  long long batch_stride[most_batch_dimensions];
  long long pitch;  // of the lines of the planes
  long long matrix_pitch;
  int rows, depth;
  int plane_depth;  // the depth of a plane, with its padding
  int slab_depth;   // what a block has of it
  int slab_pitch;   // of the slabs' exponents
  unsigned strips;  // of rows, in one matrix
  unsigned tasks;   // strips of all matrices
  int scale_pitch;
  unsigned first_block;  // that has a task
  unsigned batch_size[most_batch_dimensions];
};

struct Parameters {
  Operand operands[2];
  Census* censuses;  // of the blocks, for each operand
  const Verdict* verdict;
};
static_assert(sizeof(Parameters) == plan::parameter_bytes);

struct Shared {
  // Two of each, for tasks that follow each other.
  unsigned peak[2][most_rows];
  int large[2][most_rows];
  int lossy[2][most_rows];
  unsigned sample[2][most_rows];  // the largest value of the row's sample, as bits
  unsigned strip_sample[2];
  Census census;
};

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The exponent of a positive number, given as bits. Those without a normal exponent count as the least one.
__device__ __forceinline__ int exponent_of(unsigned bits) { return max(static_cast<int>(bits >> 23), 1) - 127; }

__device__ __forceinline__ unsigned size_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The scale, as an exponent of two, that brings the sample to 2^8.
__device__ __forceinline__ int scale_exponent(unsigned sample) {
  return sample == 0 ? 0 : min(max(8 - exponent_of(sample), -63), 63);
}

// The scale of the wide planes: as large as sums of `depth` products may be, so that small values keep all their bits.
__device__ __forceinline__ int wide_scale_exponent(unsigned peak, int depth) {
  const int digits = 32 - __clz(depth);
  return (124 - digits) / 2 - exponent_of(peak);
}

__device__ __forceinline__ float wide_scaled(float x, int exponent) {
  const int first = min(exponent, 127);
  return x * power_of_two(first) * power_of_two(exponent - first);
}

// How values that are side by side along a line are read.
enum class Access {
  vectors,   // aligned ones
  elements,  // one by one, and they are neighbours in memory
  strided,   // or are not
};

// How the threads of a block share a strip of rows.
template <bool mn_major_, Access access_, int rows_, int slabs_>
struct Strip {
  static constexpr bool mn_major = mn_major_;
  static constexpr Access access = access_;
  static constexpr int rows = rows_, slabs = slabs_;
  static constexpr int lanes = mn_major ? rows / vector : plan::threads / rows;  // side by side along a line
  static constexpr int lines = plan::threads / lanes;                            // at once
  static constexpr int step = mn_major ? lines : lanes * vector;                 // along K
  static constexpr int at_once = 4;                                              // steps whose values are under way
  static constexpr int own_rows = mn_major ? vector : 1;                         // of a thread
  static constexpr int samples = mn_major ? lines : lanes < 32 ? lanes : 32;     // of a row
  static_assert(rows <= most_rows && lanes * lines == plan::threads);
};

template <typename Strip>
class Task {
  static constexpr bool mn_major = Strip::mn_major;
  static constexpr int own_rows = Strip::own_rows;

  const Operand& o_;
  const float* from_;   // this thread's first value
  unsigned short* to_;  // and where it goes
  long long from_step_, to_step_, to_plane_;
  long long scales_;  // of this strip
  int first_row_;
  int row_;  // the first of this thread, in the strip
  int first_k_, end_k_;
  const int slab_;
  const int line_ = threadIdx.x / Strip::lanes;
  const int in_line_ = threadIdx.x % Strip::lanes;

 public:
  __device__ __forceinline__ Task(const Operand& o, unsigned task, int slab) : o_(o), slab_(slab) {
    unsigned matrix = task / o.strips;
    first_row_ = static_cast<int>(task - matrix * o.strips) * Strip::rows;
    row_ = mn_major ? in_line_ * vector : line_;
    first_k_ = slab * o.slab_depth;
    end_k_ = min(first_k_ + o.slab_depth, o.plane_depth);
    const long long row = first_row_ + row_, k = first_k_ + own_k();
    from_ = o.from + row * o.row_stride + k * o.k_stride;
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
    if (first_k_ == 0 && threadIdx.x < Strip::rows && first_row_ + static_cast<int>(threadIdx.x) < o_.rows)
      o_.factors[scales_ + threadIdx.x] = power_of_two(-scale_exponent(sampled(shared, parity, threadIdx.x)));

    Tally tally = {};
    for_each_step(
        first, [&](unsigned short* to, const Floats& x) { split(to, x, factor, tally); },
        [&](const Batch& x) { tally.flush(x, undo); });
    if (tally.special)
      shared.census.special = 1;
    share(
        tally.peak, shared.peak[parity], [](unsigned a, unsigned b) { return max(a, b); },
        [](unsigned* at, unsigned value) { atomicMax(at, value); });
    const auto sum = [](unsigned a, unsigned b) { return a + b; };
    const auto add = [](int* at, unsigned value) { atomicAdd(at, static_cast<int>(value)); };
    share(tally.large, shared.large[parity], sum, add);
    share(tally.lossy, shared.lossy[parity], sum, add);
    __syncthreads();
    count_rows(shared, parity);
  }

  __device__ __forceinline__ void run_wide() {
    int exponent[own_rows];
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      exponent[i] = 0;
      if (first_row_ + row_ + i >= o_.rows)
        continue;
      const long long at = scales_ + row_ + i;
      int undoes = o_.slab_exponents[at];
#pragma unroll
      for (int slab = 1; slab < Strip::slabs; ++slab)
        undoes = max(undoes, o_.slab_exponents[slab * static_cast<long long>(o_.slab_pitch) + at]);
      if (undoes == no_exponent)
        undoes = 0;
      if (first_k_ == 0 && (mn_major ? line_ : in_line_) == 0)
        o_.wide_exponents[at] = undoes;
      exponent[i] = -undoes;
    }
    for_each_step(
        load_batch(first_k_, from_), [&](unsigned short* to, const Floats& x) { split_wide(to, x, exponent); },
        [](const Batch&) {});
  }

 private:
  __device__ __forceinline__ int own_k() const { return mn_major ? line_ : in_line_ * vector; }

  // What a thread reads at once: its part of a few steps.
  struct Batch {
    Floats step[Strip::at_once];
  };
  static constexpr int batch_depth = Strip::at_once * Strip::step;

  // What a thread counts of its rows.
  struct Tally {
    unsigned peak[own_rows];  // of the finite values as they are
    unsigned large[own_rows];
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
            const unsigned exact = size_of(x.step[step].element[i]);
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
      if (threadIdx.x == 0)
        shared.strip_sample[parity] = 0;
    }
  }

  // Finds the largest of a few values of each row, spread over all of K.
  __device__ __forceinline__ void sample(Shared& shared, int parity) const {
    unsigned most[own_rows] = {};
    const int which = mn_major ? line_ : in_line_;
    if (which < Strip::samples) {
      const int k = static_cast<int>((2 * which + 1LL) * o_.depth / (2 * Strip::samples));
      const float* at = from_ + (k - first_k_ - own_k()) * o_.k_stride;
#pragma unroll
      for (int j = 0; j < own_rows; ++j)
        if (first_row_ + row_ + j < o_.rows) {
          const unsigned size = size_of(at[j * o_.row_stride]);
          most[j] = size < infinity ? size : 0;
        }
    }
    const auto larger = [](unsigned a, unsigned b) { return max(a, b); };
    share(most, shared.sample[parity], larger, [&](unsigned* at, unsigned value) {
      atomicMax(at, value);
      atomicMax(&shared.strip_sample[parity], value);
    });
  }

  // A row whose sample is all zeros has its neighbours' scale.
  __device__ __forceinline__ unsigned sampled(const Shared& shared, int parity, int row) const {
    return shared.sample[parity][row] ? shared.sample[parity][row] : shared.strip_sample[parity];
  }

  // Four values side by side along a line, or as many of them as are left.
  __device__ __forceinline__ Floats load(const float* at, int left) const {
    Floats x = {};
    if (Strip::access == Access::vectors && left >= vector)
      return *reinterpret_cast<const Floats*>(at);
    const long long stride = Strip::access == Access::strided ? (mn_major ? o_.row_stride : o_.k_stride) : 1;
#pragma unroll
    for (int i = 0; i < vector; ++i)
      if (i < left)
        x.element[i] = at[i * stride];
    return x;
  }

  // Whether a batch is all inside of the operand, for all threads.
  __device__ __forceinline__ bool is_inside(int k) const {
    return first_row_ + Strip::rows <= o_.rows && k + batch_depth <= min(o_.depth, end_k_);
  }

  __device__ __forceinline__ Batch load_batch(int k, const float* from) const {
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

  // Calls `take` with all that a thread has of the strip and where its planes go, and `pause` every few times. Reads
  // ahead; `x` is the first that was read.
  template <typename Take, typename Pause>
  __device__ __forceinline__ void for_each_step(Batch x, Take take, Pause pause) const {
    const float* from = from_;
    unsigned short* to = to_;
    const bool stores = first_row_ + row_ < (mn_major ? static_cast<int>(o_.pitch) : o_.rows);
    for (int k = first_k_; k < end_k_; k += batch_depth) {
      from += Strip::at_once * from_step_;
      const Batch next = load_batch(k + batch_depth, from);
      const bool all = is_inside(k);
#pragma unroll
      for (int i = 0; i < Strip::at_once; ++i) {
        if (all || (stores && k + own_k() + i * Strip::step < end_k_))
          take(to, x.step[i]);
        to += to_step_;
      }
      pause(x);
      x = next;
    }
  }

  __device__ __forceinline__ void split(unsigned short* to, const Floats& x, const float (&factor)[own_rows],
                                        Tally& tally) const {
    Plane planes[stored_planes];
    float rest[vector];
#pragma unroll
    for (int i = 0; i < vector; ++i) rest[i] = x.element[i] * factor[i % own_rows];
#pragma unroll
    for (int p = 0; p < plan::planes; ++p)
#pragma unroll
      for (int i = 0; i < vector; i += 2) {
        if (p > 0) {
          rest[i] -= ptx::half_to_float(static_cast<unsigned short>(planes[p - 1].element[i / 2]));
          rest[i + 1] -= ptx::half_to_float(static_cast<unsigned short>(planes[p - 1].element[i / 2] >> 16));
        }
        planes[p].element[i / 2] = ptx::float_to_half_pair(rest[i], rest[i + 1]);
      }
    store(to, planes);
    unsigned size[vector / 2];
#pragma unroll
    for (int i = 0; i < vector / 2; ++i) {
      size[i] = ptx::half_pair_absolute(planes[0].element[i]);
      tally.peak_pairs[i] = ptx::half_pair_max_or_nan(tally.peak_pairs[i], size[i]);
      tally.large_pairs[i] =
          ptx::half_pair_add(tally.large_pairs[i], ptx::half_pair_at_least(size[i], Census::large_pair));
    }
    // Above this, two planes leave no more than 2^-22 of the value, and one no more than 2^-11.
    constexpr unsigned safe = plan::planes == 1 ? 0x0400 : 0x3000;  // 2^-14, 2^-3 as float16
    const unsigned least = ptx::half_pair_min(size[0], size[1]);
    if (min(least & 0xffff, least >> 16) < safe) {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const float left = rest[i] - Tally::half_of(planes[plan::planes - 1].element, i);
        const unsigned first = size[i / 2] >> i % 2 * 16 & 0xffff;
        // What is not left may have vanished when it was scaled.
        tally.lossy[i % own_rows] += first < safe && (left != 0.0f || (first == 0 && x.element[i] != 0.0f));
      }
    }
  }

  __device__ __forceinline__ void split_wide(unsigned short* to, const Floats& x,
                                             const int (&exponent)[own_rows]) const {
    Plane planes[stored_planes];
    float rest[vector];
#pragma unroll
    for (int i = 0; i < vector; ++i) {
      const bool is_special = size_of(x.element[i]) >= infinity;
      const unsigned bits = __float_as_uint(x.element[i]);
      const unsigned one = (bits & 0x80000000u) | 0x3f800000u;  // with its sign
      put(planes[plan::planes], i, is_special ? bits | (bits << 9 ? 0x400000u : 0u) : x.element[i] == 0.0f ? 0u : one);
      rest[i] = is_special ? 0.0f : wide_scaled(x.element[i], exponent[i % own_rows]);
    }
#pragma unroll
    for (int p = 0; p < plan::planes; ++p)
#pragma unroll
      for (int i = 0; i < vector; i += 2) {
        const unsigned pair = ptx::float_to_bfloat16_pair(rest[i], rest[i + 1]);
        planes[p].element[i / 2] = pair;
        rest[i] -= __uint_as_float(pair << 16);
        rest[i + 1] -= __uint_as_float(pair & 0xffff0000u);
      }
    store(to, planes);
  }

  // The upper half of `bits` as one element of a plane.
  static __device__ __forceinline__ void put(Plane& plane, int i, unsigned bits) {
    plane.element[i / 2] = i % 2 ? plane.element[i / 2] | (bits & 0xffff0000u) : bits >> 16;
  }

  __device__ __forceinline__ void store(unsigned short* to, const Plane (&planes)[stored_planes]) const {
#pragma unroll
    for (int p = 0; p < stored_planes; ++p) {
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

  __device__ __forceinline__ void count_rows(Shared& shared, int parity) const {
    const int row = threadIdx.x;
    if (row >= Strip::rows || first_row_ + row >= o_.rows)
      return;
    const unsigned peak = shared.peak[parity][row];
    const unsigned sample = sampled(shared, parity, row);
    o_.slab_exponents[slab_ * static_cast<long long>(o_.slab_pitch) + scales_ + row] =
        peak == 0 ? no_exponent : -wide_scale_exponent(peak, o_.depth);
    if (peak == 0 && Strip::slabs == 1)
      return;  // a row of zeros is exact
    const float scaled_peak = __uint_as_float(peak) * power_of_two(scale_exponent(sample));
    atomicMin(&shared.census.least_large, shared.large[parity][row]);
    atomicMax(&shared.census.most_lossy, shared.lossy[parity][row]);
    atomicMax(&shared.census.peak, __float_as_int(scaled_peak));
    if (scaled_peak >= 65504.0f)
      shared.census.special = 1;
  }
};

template <typename Strip>
__device__ __forceinline__ void split_operand(const Operand& o, Shared& shared, Census* censuses) {
  if (!plan::wide && threadIdx.x == 0)
    shared.census = Census::none();
  // Of all blocks, those come first that had fewer tasks of the other operand.
  const unsigned block =
      blockIdx.x < o.first_block ? blockIdx.x + gridDim.x - o.first_block : blockIdx.x - o.first_block;
  int parity = 0;
  for (unsigned task = block / Strip::slabs; task < o.tasks; task += gridDim.x / Strip::slabs) {
    Task<Strip> strip(o, task, block % Strip::slabs);
    if constexpr (plan::wide)
      strip.run_wide();
    else
      strip.run(shared, parity);
    parity ^= 1;
  }
  if constexpr (!plan::wide) {
    __syncthreads();
    if (threadIdx.x == 0)
      censuses[block] = shared.census;
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    split(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (plan::wide && *p.verdict == Verdict::planes_suffice)
    return;
  split_operand<Strip<plan::a_mn_major, static_cast<Access>(plan::a_access), plan::a_rows, plan::a_slabs>>(
      p.operands[0], shared, p.censuses);
  split_operand<Strip<plan::b_mn_major, static_cast<Access>(plan::b_access), plan::b_rows, plan::b_slabs>>(
      p.operands[1], shared, p.censuses + gridDim.x);
}

}  // namespace tilesmith
