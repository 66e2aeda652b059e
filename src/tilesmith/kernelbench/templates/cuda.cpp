// What is CUDA's alone.
#include <c10/cuda/CUDAStream.h>

static bool is_on_gpu(const Tensor& x) { return x.is_cuda(); }
static void* current_stream(const Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.get_device()).stream(); }
