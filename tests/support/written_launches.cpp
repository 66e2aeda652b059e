// CUDA's runtime as written modules see it: it prints what is launched. A tensor map is what it was made of, as text.
// The text before this has the plans, and `multiply_planned`.
#include <cstdio>
#include <cstdlib>

static int allowed;  // kernels that may have their shared memory

extern "C" const char* cudaGetErrorString(cudaError_t) { return "an error"; }

extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  ++allowed;
  return cudaSuccess;
}

static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t*,
                       CUtensorMapInterleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill) {
  if (reinterpret_cast<size_t>(map) % 64 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, 128);
  int at =
      std::snprintf(reinterpret_cast<char*>(map), 128, "%zx %d %d:", reinterpret_cast<size_t>(address), type, swizzle);
  for (cuuint32_t i = 0; i < rank; ++i)
    at += std::snprintf(reinterpret_cast<char*>(map) + at, 128 - at, " %zu %u", static_cast<size_t>(sizes[i]), box[i]);
  for (cuuint32_t i = 0; i + 1 < rank; ++i)
    at += std::snprintf(reinterpret_cast<char*>(map) + at, 128 - at, " %zu", static_cast<size_t>(strides[i]));
  return at < 128 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult*) {
  *function = reinterpret_cast<void*>(&encode);
  return cudaSuccess;
}

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  size_t bytes = 0;
  for (const planned::Plan& plan : planned::plans)
    for (int i = 0; i < plan.count; ++i)
      if (plan.launches[i].kernel == kernel)
        bytes = plan.launches[i].parameter_bytes;
  int cluster = 1, starts_early = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& each = config->attrs[i];
    if (each.id == cudaLaunchAttributeClusterDimension)
      cluster = each.val.clusterDim.x * each.val.clusterDim.y * each.val.clusterDim.z;
    if (each.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      starts_early = each.val.programmaticStreamSerializationAllowed;
  }
  std::printf("%u %u %u %u %zu %d %d %zu ", config->gridDim.x, config->gridDim.y, config->gridDim.z, config->blockDim.x,
              config->dynamicSmemBytes, cluster, starts_early, reinterpret_cast<size_t>(config->stream));
  for (size_t i = 0; i < bytes; ++i) std::printf("%02x", static_cast<unsigned char*>(arguments[0])[i]);
  std::printf("\n");
  return cudaSuccess;
}

// A call for each eight arguments: plan, device, stream, and the addresses of the buffers.
int main(int count, char** texts) {
  for (int i = 1; i < count; i += 3 + planned::buffer_count) {
    void* buffers[planned::buffer_count];
    for (int j = 0; j < planned::buffer_count; ++j)
      buffers[j] = reinterpret_cast<void*>(std::strtoull(texts[i + 3 + j], nullptr, 10));
    if (const char* error = multiply_planned(std::atoi(texts[i]), std::atoi(texts[i + 1]), buffers,
                                             reinterpret_cast<void*>(std::strtoull(texts[i + 2], nullptr, 10)))) {
      std::printf("%s\n", error);
      return 1;
    }
  }
  std::printf("%d\n", allowed);
}
