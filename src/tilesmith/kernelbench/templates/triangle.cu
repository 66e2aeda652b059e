// Zeros below a diagonal, or above it.
#include <cuda_runtime.h>

namespace triangles {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads)
    clear_triangle(float* x, long long all_rows, long long rows, long long columns, long long diagonal, bool upper) {
  for (long long row = blockIdx.x; row < all_rows; row += gridDim.x) {
    const long long on_diagonal = row % rows + diagonal;
    const long long first = upper ? 0 : max(on_diagonal + 1, 0LL), end = upper ? min(on_diagonal, columns) : columns;
    for (long long column = first + threadIdx.x; column < end; column += threads) x[row * columns + column] = 0.0f;
  }
}

}  // namespace triangles

const char* keep_triangle(void* x, long long all_rows, long long rows, long long columns, long long diagonal,
                          bool upper, void* stream) {
  using namespace triangles;
  constexpr long long most = 1 << 20;  // blocks; with more rows, each has several
  const dim3 grid(all_rows < most ? all_rows : most);
  clear_triangle<<<grid, threads, 0, (cudaStream_t)stream>>>((float*)x, all_rows, rows, columns, diagonal, upper);
  const cudaError_t error = cudaGetLastError();
  return error ? cudaGetErrorString(error) : nullptr;
}
