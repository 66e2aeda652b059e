// What may stand beside a product: factors, and triangles of it. Memory is the limit: 16 bytes at a time where they are
// aligned.
#include <cuda_runtime.h>

namespace elementwise {

constexpr int threads = 256;
constexpr int vector = 4;

struct Line {
  const float* from;
  float* to;
  long long length;
};

// What a thread has of a line: four elements, or one after the other where lines are not aligned.
__device__ __forceinline__ void scale(const Line& line, long long first, float factor, bool aligned) {
  if (aligned && first + vector <= line.length) {
    const float4 x = *reinterpret_cast<const float4*>(line.from + first);
    *reinterpret_cast<float4*>(line.to + first) = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
    return;
  }
  for (long long i = first; i < first + vector && i < line.length; ++i) line.to[i] = line.from[i] * factor;
}

// The factor of all elements, or of a row each.
__global__ void __launch_bounds__(threads) scale_rows(const float* x, float* y, long long rows, long long columns,
                                                      const float* factors, float factor, bool aligned) {
  const long long first = (static_cast<long long>(blockIdx.x) * threads + threadIdx.x) * vector;
  if (first >= columns)
    return;
  for (long long row = blockIdx.y; row < rows; row += gridDim.y)
    scale({x + row * columns, y + row * columns, columns}, first, factors ? factors[row] : factor, aligned);
}

// Writes zeros below a diagonal, or above it.
__global__ void __launch_bounds__(threads)
    clear_triangle(float* x, long long all_rows, long long rows, long long columns, long long diagonal, bool upper) {
  for (long long row = blockIdx.x; row < all_rows; row += gridDim.x) {
    const long long on_diagonal = row % rows + diagonal;
    const long long first = upper ? 0 : max(on_diagonal + 1, 0LL), end = upper ? min(on_diagonal, columns) : columns;
    for (long long column = first + threadIdx.x; column < end; column += threads) x[row * columns + column] = 0.0f;
  }
}

}  // namespace elementwise

const char* multiply_rows(const void* x, void* y, long long rows, long long columns, const void* factors, float factor,
                          void* stream) {
  using namespace elementwise;
  constexpr long long most = 65535;  // blocks along the second dimension of a grid
  const bool aligned = ((size_t)x | (size_t)y | (columns % vector ? 1 : 0)) % 16 == 0;
  const dim3 grid((columns + threads * vector - 1) / (threads * vector), rows < most ? rows : most);
  scale_rows<<<grid, threads, 0, (cudaStream_t)stream>>>((const float*)x, (float*)y, rows, columns,
                                                         (const float*)factors, factor, aligned);
  const cudaError_t error = cudaGetLastError();
  return error ? cudaGetErrorString(error) : nullptr;
}

const char* keep_triangle(void* x, long long all_rows, long long rows, long long columns, long long diagonal,
                          bool upper, void* stream) {
  using namespace elementwise;
  constexpr long long most = 1 << 20;  // blocks; with more rows, each has several
  const dim3 grid(all_rows < most ? all_rows : most);
  clear_triangle<<<grid, threads, 0, (cudaStream_t)stream>>>((float*)x, all_rows, rows, columns, diagonal, upper);
  const cudaError_t error = cudaGetLastError();
  return error ? cudaGetErrorString(error) : nullptr;
}
