// Launches a product of float32 matrices with any sizes and strides. The text before this has its kernels in namespace
// general: one for each way in which the operands may lie.
#include <cuda_runtime.h>

namespace general {

// Batches of matrices: their number and sizes, and the strides of A, B and C over batches, rows and columns.
struct Sizes {
  long long batches, m, n, k;
  long long a[3], b[3], out[3];
};

template <typename Parameters>
static cudaError_t launch(void (*kernel)(Parameters), const float* a, const float* b, float* out, const Sizes& s,
                          bool adds, cudaStream_t stream) {
  using namespace kernel_0::plan;  // these constants are the same in all of them
  Parameters p = {};
  p.a = a;
  p.b = b;
  p.out = out;
  p.m = s.m;
  p.n = s.n;
  p.k = s.k;
  p.a_stride_m = s.a[1];
  p.a_stride_k = s.a[2];
  p.b_stride_k = s.b[1];
  p.b_stride_n = s.b[2];
  p.out_stride_m = s.out[1];
  p.out_stride_n = s.out[2];
  p.tiles_m = (s.m + tile_m - 1) / tile_m;
  p.tiles_n = (s.n + tile_n - 1) / tile_n;
  p.batches = s.batches;
  p.adds = adds;
  p.out_vector = 1;
  p.batch_dims = 1;
  p.batch[0].size = s.batches;
  p.batch[0].a_stride = s.a[0];
  p.batch[0].b_stride = s.b[0];
  p.batch[0].out_stride = s.out[0];
  constexpr long long most = 65535;  // blocks along the second dimension of a grid
  const long long rows = s.batches < most ? s.batches : most;
  const dim3 grid(p.tiles_m * p.tiles_n, rows, (s.batches + most - 1) / most);
  void* pointers[] = {&p};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(threads), pointers, shared_bytes, stream);
}

// The same in parts of K, each added to the last: one long chain of roundings would have more error than torch's sums.
template <typename Parameters>
static cudaError_t launch_parts(void (*kernel)(Parameters), const float* a, const float* b, float* out, Sizes s,
                                cudaStream_t stream) {
  constexpr long long part = 4096;
  const long long k = s.k;
  cudaError_t error = cudaSuccess;
  for (long long first = 0; first < k && error == cudaSuccess; first += part) {
    s.k = k - first < part ? k - first : part;
    error = launch(kernel, a + first * s.a[2], b + first * s.b[1], out, s, first > 0, stream);
  }
  return error;
}

// Whether an operand is read along K: `other` is its stride along M or N.
static bool along_k(long long k, long long other) { return other != 1 && k <= other; }

}  // namespace general

const char* multiply_any(const void* a, const void* b, void* out, const long long* sizes, void* stream) {
  using namespace general;
  const Sizes& s = *reinterpret_cast<const Sizes*>(sizes);
  const float *from_a = static_cast<const float*>(a), *from_b = static_cast<const float*>(b);
  float* to = static_cast<float*>(out);
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  const bool a_along_k = along_k(s.a[2], s.a[1]), b_along_k = along_k(s.b[1], s.b[2]);
  cudaError_t error;
  if (a_along_k)
    error = b_along_k ? launch_parts(KERNEL_0, from_a, from_b, to, s, on)
                      : launch_parts(KERNEL_1, from_a, from_b, to, s, on);
  else
    error = b_along_k ? launch_parts(KERNEL_2, from_a, from_b, to, s, on)
                      : launch_parts(KERNEL_3, from_a, from_b, to, s, on);
  return error ? cudaGetErrorString(error) : nullptr;
}
