// Rows times factors. Memory is the limit: 16 bytes at a time where they are aligned.
#include <cuda_runtime.h>

namespace row_factors {

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

}  // namespace row_factors

const char* multiply_rows(const void* x, void* y, long long rows, long long columns, const void* factors, float factor,
                          void* stream) {
  using namespace row_factors;
  constexpr long long most = 65535;  // blocks along the second dimension of a grid
  const bool aligned = ((size_t)x | (size_t)y | (columns % vector ? 1 : 0)) % 16 == 0;
  const dim3 grid((columns + threads * vector - 1) / (threads * vector), rows < most ? rows : most);
  scale_rows<<<grid, threads, 0, (cudaStream_t)stream>>>((const float*)x, (float*)y, rows, columns,
                                                         (const float*)factors, factor, aligned);
  const cudaError_t error = cudaGetLastError();
  return error ? cudaGetErrorString(error) : nullptr;
}
