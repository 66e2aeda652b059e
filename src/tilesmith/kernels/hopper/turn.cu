// Copies a float32 operand that lies across K into lines along K, which start at multiples of 16 bytes.
//
// A block turns a tile: it reads lines of the operand, 32 elements for a warp, and writes vectors of 16 bytes.

#include "batch.cuh"
#include "ptx/grid.cuh"
#include "vector.cuh"

namespace tilesmith {

using plan::Parameters;

constexpr int rows = plan::tile_rows, depth = plan::tile_depth;
constexpr int warps = plan::threads / 32;
constexpr int vectors = depth / 4;  // of a row
static_assert(rows == 32 && depth % warps == 0 && rows * vectors % plan::threads == 0);

extern "C" __global__ void __launch_bounds__(plan::threads) turn(const __grid_constant__ Parameters p) {
  __shared__ float tile[rows][depth + 1];  // neither side meets bank conflicts of more than two
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  const unsigned of_matrix = p.tiles_m * p.tiles_k;
  const unsigned matrix = blockIdx.x / of_matrix, number = blockIdx.x - matrix * of_matrix;
  const int first_k = static_cast<int>(number / p.tiles_m) * depth,
            first_m = static_cast<int>(number % p.tiles_m) * rows;
  const float* from = p.source;
  unsigned batch = matrix;
  if (batch > 0)
#pragma unroll
    for (int d = 0; d < max_batch_dims; ++d) {
      from += batch % p.batch_size[d] * p.batch_stride[d];
      batch /= p.batch_size[d];
    }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float read[depth / warps];
#pragma unroll
  for (int i = 0; i < depth / warps; ++i) {
    const int k = first_k + warp + i * warps, m = first_m + lane;
    read[i] = k < p.depth && m < p.rows ? from[k * p.line_stride + m] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < depth / warps; ++i) tile[lane][warp + i * warps] = read[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows * vectors / plan::threads; ++i) {
    const int at = threadIdx.x + i * plan::threads, row = at / vectors, k = at % vectors * 4;
    if (first_m + row < p.rows && first_k + k < p.depth)
      *reinterpret_cast<Vector<float, 4>*>(
          p.target + (static_cast<long long>(matrix) * p.rows + first_m + row) * p.pitch + first_k + k) = {
          tile[row][k], tile[row][k + 1], tile[row][k + 2], tile[row][k + 3]};
  }
}

}  // namespace tilesmith
