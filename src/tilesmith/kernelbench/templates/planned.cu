// Launches plans. The text before this has their kernels in namespace planned, the text after it their tables.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

namespace planned {

// Eight bytes of a launch's parameters that hold an address.
struct Address {
  int position, buffer;
  long long offset;
};
// 128 bytes of them that describe a tensor to TMA, its contiguous dimension first.
struct Map {
  int position, buffer;
  long long offset;
  CUtensorMapDataType type;
  int rank;
  cuuint64_t sizes[5], strides[4];
  cuuint32_t box[5];
  CUtensorMapSwizzle swizzle;
};
struct Launch {
  const void* kernel;
  unsigned grid[3];
  int threads, shared_bytes, cluster;
  bool starts_early;  // before its predecessor in the stream ends, for which it waits itself
  const void* parameters;
  size_t parameter_bytes;
  const Address* addresses;
  int address_count;
  const Map* maps;
  int map_count;
};

struct Plan {
  const Launch* launches;
  int count;
};

// Through the runtime: nothing to link.
static auto encoder() -> decltype(&cuTensorMapEncodeTiled) {
  static void* const found = [] {
    void* function = nullptr;
#if CUDART_VERSION >= 12050
    const auto error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault);
#else
    const auto error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault);
#endif
    return error ? nullptr : function;
  }();
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

static const char* launch(const Launch& x, char* const* buffers, cudaStream_t stream) {
  alignas(64) unsigned char parameters[1024];
  if (x.parameter_bytes > sizeof(parameters))
    return "the parameters of a kernel are too long";
  std::memcpy(parameters, x.parameters, x.parameter_bytes);
  for (int i = 0; i < x.address_count; ++i) {
    const Address& each = x.addresses[i];
    char* const address = buffers[each.buffer] + each.offset;
    std::memcpy(parameters + each.position, &address, sizeof(address));
  }
  for (int i = 0; i < x.map_count; ++i) {
    const Map& each = x.maps[i];
    const cuuint32_t every_element[5] = {1, 1, 1, 1, 1};
    if (!encoder())
      return "the CUDA driver has no cuTensorMapEncodeTiled";
    if (encoder()(reinterpret_cast<CUtensorMap*>(parameters + each.position), each.type, each.rank,
                  buffers[each.buffer] + each.offset, each.sizes, each.strides, each.box, every_element,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, each.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
      return "the CUDA driver refused a tensor map";
  }
  if (const cudaError_t error =
          cudaFuncSetAttribute(x.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, x.shared_bytes))
    return cudaGetErrorString(error);
  cudaLaunchAttribute attributes[2];
  int attribute_count = 0;
  if (x.cluster > 1) {
    attributes[attribute_count].id = cudaLaunchAttributeClusterDimension;
    attributes[attribute_count].val.clusterDim.x = x.cluster;
    attributes[attribute_count].val.clusterDim.y = attributes[attribute_count].val.clusterDim.z = 1;
    ++attribute_count;
  }
  if (x.starts_early) {
    attributes[attribute_count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[attribute_count].val.programmaticStreamSerializationAllowed = 1;
    ++attribute_count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(x.grid[0], x.grid[1], x.grid[2]);
  config.blockDim = dim3(x.threads);
  config.dynamicSmemBytes = x.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = attribute_count;
  void* pointers[] = {parameters};
  const cudaError_t error = cudaLaunchKernelExC(&config, x.kernel, pointers);
  return error ? cudaGetErrorString(error) : nullptr;
}

static const char* launch_all(const Plan& plan, char* const* buffers, cudaStream_t stream) {
  for (int i = 0; i < plan.count; ++i)
    if (const char* error = launch(plan.launches[i], buffers, stream))
      return error;
  return nullptr;
}

}  // namespace planned
