// C = A B for up to 16 rows of A, on the tensor cores in double: products are exact, sums are rounded to float once.
//
// The instruction's M is 16 columns of B, its N is 8 rows of A. The lanes of a warp copy what
// they need, several steps along K ahead: no warp waits for another before the end. The warps of a block share its
// columns, or take turns along K, and so do the blocks of a cluster, whose sums are added in their order. Beyond that,
// K is cut into parts, whose sums are added by another launch.

#include "kernels/whole_epilogue.cuh"
#include "ptx/barrier.cuh"
#include "ptx/copy.cuh"
#include "ptx/dmma.cuh"
#include "ptx/grid.cuh"
#include "ptx/shared.cuh"
#include "ptx/warp.cuh"
#include "vector.cuh"

namespace tilesmith {

constexpr int step_k = plan::step_k, warp_columns = plan::warp_columns;
constexpr int tiles = warp_columns / 16;  // the instruction's M
constexpr int row_groups = plan::row_groups;
constexpr int warps = plan::threads / 32;
constexpr int k_warps = warps / plan::column_warps;  // that take turns along K
constexpr int block_columns = plan::column_warps * warp_columns;
constexpr int turn_k = k_warps * step_k;
constexpr int vector = 4;
constexpr int b_vectors = warp_columns * step_k / (32 * vector);  // of a lane in a step
using Floats = Vector<float, vector>;

using plan::Parameters;

// The operands of one step of a warp. A lane has the same four k for all its rows and columns: 4 (lane % 4) and the
// next three. With row = lane / 4,
//   a[r] has row 8 r + row,
//   b[v] has column 8 v + row, where the lines of B run along K, or else
//   b[v] has one k, the one of v % 4, and the four columns from 32 (v / 4) + 4 row on.
struct Slot {
  Floats b[b_vectors][32];
  Floats a[row_groups][32];

  // Where the b of a row and of a quarter of the k is: in different banks, for those who copy and for those who read.
  static __device__ __forceinline__ int place(int row, int quarter) {
    return plan::b_along_k ? 4 * row + quarter : 8 * quarter + (row ^ 2 * quarter);
  }
};

// Where a sum lies: its tile, row group, element of the fragment, and lane.
using Sums = double[tiles][row_groups][4][32];

struct Shared {
  union {
    Slot ring[plan::stages];
    Sums sums;
  } warp[warps];
};
static_assert(sizeof(Shared) == plan::shared_bytes);

// The bytes of a vector that has no more than `count` elements.
__device__ __forceinline__ int bytes_of(int count) {
  return static_cast<int>(sizeof(float)) * min(max(count, 0), vector);
}

// The first `count` elements of four, `stride` apart, and zeros for the others.
__device__ __forceinline__ void copy_elements(unsigned to, const float* from, long long stride, int count) {
#pragma unroll
  for (int i = 0; i < vector; ++i)
    ptx::copy_start_4_or_none(to + i * static_cast<int>(sizeof(float)), from + i * stride, i < count);
}

// Copies the steps of a warp, one after the other.
class Reader {
 public:
  __device__ __forceinline__ Reader(const Parameters& p, int first_n, int first_k, int end_k)
      : p_(p), lane_(threadIdx.x % 32), k_(first_k), end_k_(end_k) {
    const int row = lane_ / 4, k = first_k + lane_ % 4 * vector;
    n_ = first_n + (plan::b_along_k ? b_row_ : b_row_ * vector);
    all_columns_ = first_n + warp_columns <= p.n;
    const int b_k = first_k + b_quarter_ * vector;
    b_ = plan::b_along_k ? p.b + n_ * p.b_line_stride + b_k : p.b + b_k * p.b_line_stride + n_;
    // Rows that are not there are copies of the last one: their sums are not stored.
#pragma unroll
    for (int r = 0; r < row_groups; ++r) a_[r] = p.a + min(8 * r + row, p.m - 1) * p.a_stride_m + k * p.a_stride_k;
  }

  // The next step, or nothing. A group of copies in any case.
  __device__ __forceinline__ void copy_next(Slot& slot) {
    if (k_ < end_k_) {
      if (all_columns_ && k_ + step_k <= p_.k)
        copy<true>(slot);
      else
        copy<false>(slot);
      k_ += turn_k;
      b_ += plan::b_along_k ? turn_k : turn_k * p_.b_line_stride;
#pragma unroll
      for (int r = 0; r < row_groups; ++r) a_[r] += turn_k * p_.a_stride_k;
    }
    ptx::copy_commit();
  }

 private:
  template <bool inside>
  __device__ __forceinline__ void copy(Slot& slot) const {
    const int a_k = k_ + lane_ % 4 * vector, k = k_ + b_quarter_ * vector;
#pragma unroll
    for (int v = 0; v < b_vectors; ++v) {
      const float* from = b_ + (plan::b_along_k ? v * 8 * p_.b_line_stride : v % 4 * p_.b_line_stride + v / 4 * 32);
      int count = vector;
      if constexpr (!inside && plan::b_along_k)
        count = n_ + v * 8 < p_.n ? p_.k - k : 0;
      else if constexpr (!inside)
        count = k + v % 4 < p_.k ? p_.n - n_ - v / 4 * 32 : 0;
      const unsigned to = ptx::shared_address(&slot.b[v][Slot::place(b_row_, b_quarter_)]);
      if constexpr (plan::b_aligned)
        ptx::copy_start_16_of_line(to, from, bytes_of(count));
      else
        copy_elements(to, from, 1, count);
    }
#pragma unroll
    for (int r = 0; r < row_groups; ++r) {
      const unsigned to = ptx::shared_address(&slot.a[r][lane_]);
      const int count = inside ? vector : p_.k - a_k;
      if constexpr (plan::a_vectors)
        ptx::copy_start_16_cached(to, a_[r], bytes_of(count));
      else
        copy_elements(to, a_[r], p_.a_stride_k, count);
    }
  }

  const Parameters& p_;
  const int lane_;
  // What of B the lane copies. Lanes that are neighbours copy neighbours in memory, for each other if they have to.
  const int b_row_ = plan::b_along_k ? lane_ / 4 : lane_ % 8;
  const int b_quarter_ = plan::b_along_k ? lane_ % 4 : lane_ / 8;
  int k_, n_;
  const int end_k_;
  bool all_columns_;
  const float* b_;
  const float* a_[row_groups];
};

// Adds the products of one step to the sums, and has the slot filled again as soon as it is read.
__device__ __forceinline__ void multiply(double (&sum)[tiles][row_groups][4], Slot& slot, Reader& reader) {
  const int lane = threadIdx.x % 32;
  Floats few[row_groups], many[b_vectors];
#pragma unroll
  for (int r = 0; r < row_groups; ++r) few[r] = slot.a[r][lane];
#pragma unroll
  for (int v = 0; v < b_vectors; ++v) many[v] = slot.b[v][Slot::place(lane / 4, lane % 4)];
  __syncwarp();
  reader.copy_next(slot);

  double a[row_groups][4];
#pragma unroll
  for (int r = 0; r < row_groups; ++r)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[r][i] = few[r].element[i];
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    double b[8];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        b[2 * i + h] = plan::b_along_k ? many[2 * t + h].element[i] : many[t / 2 * 4 + i].element[t % 2 * 2 + h];
#pragma unroll
    for (int r = 0; r < row_groups; ++r) ptx::dmma(sum[t][r], b, a[r]);
  }
}

// The sum of row m and column n of a warp: multiply's places.
__device__ __forceinline__ double& sum_at(Sums& sums, int m, int n) {
  const int tile = plan::b_along_k ? n / 16 : n / 32 * 2 + n / 2 % 2;
  const int half = plan::b_along_k ? n / 8 % 2 : n % 2;
  const int row = plan::b_along_k ? n % 8 : n / 4 % 8;
  return sums[tile][m / 8][2 * half + m % 2][4 * row + m % 8 / 2];
}

__device__ __forceinline__ void cluster_sync() {
  ptx::cluster_arrive_release();
  ptx::cluster_wait();
}

// What a block does.
struct Place {
  int in_cluster, part, first_n;

  __device__ __forceinline__ Place(unsigned block, const Parameters& p) {
    const int cluster = static_cast<int>(block) / p.cluster;
    in_cluster = static_cast<int>(block) - cluster * p.cluster;
    part = cluster / p.column_blocks;
    first_n = (cluster - part * p.column_blocks) * block_columns;
  }
};

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    skinny(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = ptx::warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const Place of_loads(blockIdx.x, p);
  const int first_k = (of_loads.part * p.cluster + of_loads.in_cluster) * p.share_k;
  const int end_k = min(first_k + p.share_k, p.k);
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  auto& own = shared.warp[warp];
  const int warp_k = first_k + warp / plan::column_warps * step_k;
  Reader reader(p, of_loads.first_n + warp % plan::column_warps * warp_columns, warp_k, end_k);
#pragma unroll
  for (int s = 0; s < plan::stages; ++s) reader.copy_next(own.ring[s]);
  double sum[tiles][row_groups][4] = {};
  int stage = 0;
  for (int k = warp_k; k < end_k; k += turn_k) {
    ptx::copy_wait<plan::stages - 1>();
    __syncwarp();
    multiply(sum, own.ring[stage], reader);
    stage = stage + 1 == plan::stages ? 0 : stage + 1;
  }

  __syncwarp();  // the sums lie where the last operands were
#pragma unroll
  for (int t = 0; t < tiles; ++t)
#pragma unroll
    for (int r = 0; r < row_groups; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) own.sums[t][r][e][lane] = sum[t][r][e];
  __syncthreads();

  // Found out again: until here, registers are scarce.
  const Place place(ptx::forgotten(blockIdx.x), p);
  const int first_n = place.first_n;
  const WholeEpilogue<float, 0> epilogue(p.epilogue);
  const auto store = [&](int m, int n, double value) {
    if (first_n + n >= p.n)
      return;
    const long long at = place.part * p.out_part_stride + m * p.out_stride_m + (first_n + n) * p.out_stride_n;
    if (p.out_is_partial)
      static_cast<double*>(p.out)[at] = value;
    else
      static_cast<float*>(p.out)[at] = epilogue.of(value, m, first_n + n);
  };
  const int outputs = p.m * block_columns;
  for (int i = threadIdx.x; i < outputs; i += plan::threads) {
    const int m = i / block_columns, n = i % block_columns;
    const int column_warp = n / warp_columns;
    double& total = sum_at(shared.warp[column_warp].sums, m, n % warp_columns);
    double x = total;
#pragma unroll
    for (int w = 1; w < k_warps; ++w)
      x += sum_at(shared.warp[w * plan::column_warps + column_warp].sums, m, n % warp_columns);
    if (p.cluster > 1)
      total = x;
    else
      store(m, n, x);
  }
  if (p.cluster > 1) {
    cluster_sync();
    for (int i = place.in_cluster * plan::threads + threadIdx.x; i < outputs; i += p.cluster * plan::threads) {
      const int m = i / block_columns, n = i % block_columns;
      const double& total = sum_at(shared.warp[n / warp_columns].sums, m, n % warp_columns);
      double found[plan::max_cluster];  // all reads are under way together
#pragma unroll
      for (int block = 0; block < plan::max_cluster; ++block)
        if (block < p.cluster)
          found[block] = ptx::shared_load_remote(total, block);
      double x = found[0];
#pragma unroll
      for (int block = 1; block < plan::max_cluster; ++block)
        if (block < p.cluster)
          x += found[block];
      store(m, n, x);
    }
    cluster_sync();  // a neighbour may still read this block's shared memory
  }
}

}  // namespace tilesmith
