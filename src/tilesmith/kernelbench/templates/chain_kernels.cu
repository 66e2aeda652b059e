// Operations on elements and sums and extremes of segments in one kernel: memory is the limit.
namespace chains {

constexpr int threads = 256;

// Element i has data[i / inner % period].
struct Operand {
  const float* data;
  unsigned inner, period;
};

struct Arguments {
  Operand x[MAX_OPERANDS];
  float* out;
  unsigned segments, length;
  float numbers[MAX_NUMBERS];
};

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float value_at(const Operand& x, unsigned i) { return x.data[i / x.inner % x.period]; }

template <int width>
__device__ __forceinline__ void load_whole(const Operand& x, unsigned i, float (&values)[width]) {
  if constexpr (width == 4) {
    const float4 all = *reinterpret_cast<const float4*>(x.data + i);
    values[0] = all.x, values[1] = all.y, values[2] = all.z, values[3] = all.w;
  } else {
    values[0] = x.data[i];
  }
}

// With a width of 4, four elements have consecutive values, or one.
template <int width>
__device__ __forceinline__ void load(const Operand& x, unsigned i, float (&values)[width]) {
  if (width > 1 && x.inner == 1)
    return load_whole(x, i % x.period, values);
  const float value = value_at(x, i);
#pragma unroll
  for (float& each : values) each = value;
}

template <int width>
__device__ __forceinline__ void store(float* out, unsigned i, const float (&y)[width]) {
  if constexpr (width == 4)
    *reinterpret_cast<float4*>(out + i) = {y[0], y[1], y[2], y[3]};
  else
    out[i] = y[0];
}

// As torch has them of NaNs: they stay.
__device__ __forceinline__ float at_least(float x, float y) { return x < y ? y : x; }
__device__ __forceinline__ float at_most(float x, float y) { return x > y ? y : x; }
__device__ __forceinline__ float larger(float x, float y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ float smaller(float x, float y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ void take_sum(float& total, float x) { total += x; }
__device__ __forceinline__ void take_max(float& total, float x) { total = larger(total, x); }
__device__ __forceinline__ void take_min(float& total, float x) { total = smaller(total, x); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float gelu(float x) { return x * 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
__device__ __forceinline__ float softplus(float x, float beta, float threshold) {
  return x * beta > threshold ? x : log1pf(expf(x * beta)) / beta;
}
__device__ __forceinline__ float finite_or_zero(float x) { return isinf(x) ? 0.0f : x; }

// All threads, for kernels that have no segments.
struct Everyone {
  unsigned rank, size;
};

// Threads of one warp that have a segment.
template <int lanes>
struct Lanes {
  static constexpr unsigned size = lanes;
  unsigned rank;

  __device__ explicit Lanes(unsigned thread) : rank(thread % lanes) {}

  template <class Take>
  __device__ float all(float x, Take take) const {
    const unsigned mask = (lanes == 32 ? 0u : 1u << lanes % 32) - 1u;
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      take(x, __shfl_xor_sync(mask << (threadIdx.x % 32 - rank), x, distance));
    return x;
  }
  __device__ float sum(float x) const { return all(x, take_sum); }
  __device__ float max(float x) const { return all(x, take_max); }
  __device__ float min(float x) const { return all(x, take_min); }
};

// A block that has a segment.
template <int block_threads>
struct Block {
  static constexpr unsigned size = block_threads;
  unsigned rank;

  __device__ explicit Block(unsigned thread) : rank(thread) {}

  template <class Take>
  __device__ float all(float x, Take take) const {
    constexpr int warps = block_threads / 32;
    __shared__ float of_warps[warps];
    x = Lanes<32>(rank).all(x, take);
    __syncthreads();
    if (rank % 32 == 0)
      of_warps[rank / 32] = x;
    __syncthreads();
    return Lanes<warps>(rank).all(of_warps[rank % warps], take);
  }
  __device__ float sum(float x) const { return all(x, take_sum); }
  __device__ float max(float x) const { return all(x, take_max); }
  __device__ float min(float x) const { return all(x, take_min); }
};

template <class Chain, int width>
__global__ void __launch_bounds__(threads) over_elements(const __grid_constant__ Arguments g) {
  Chain::template run<width>(g, 0, Everyone{blockIdx.x * threads + threadIdx.x, gridDim.x * threads});
}

// Threads of a block in which teams of so many have segments.
__host__ __device__ constexpr int threads_with(int team) { return team > threads ? team : threads; }

template <class Chain, int width, class Team>
__global__ void __launch_bounds__(threads_with(Team::size)) over_segments(const __grid_constant__ Arguments g) {
  const unsigned segment = blockIdx.x * (threads_with(Team::size) / Team::size) + threadIdx.x / Team::size;
  if (segment < g.segments)
    Chain::template run<width>(g, segment, Team(threadIdx.x));
}

}  // namespace chains
