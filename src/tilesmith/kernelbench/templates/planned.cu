// Launches the stages of a plan. The text before this has its kernels in namespace planned, the text after it their
// table.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

namespace planned {

// Eight bytes of a launch's arguments that hold an address.
struct Address {
  int position, buffer;
  long long offset;
};
// 128 bytes of them that describe a tensor to the copy engine, its contiguous dimension first.
struct Map {
  int position, buffer;
  long long offset;
  CUtensorMapDataType type;
  int rank;
  cuuint64_t sizes[5], strides[4];
  cuuint32_t box[5];
  CUtensorMapSwizzle swizzle;
};
struct Stage {
  const void* kernel;
  unsigned grid[3];
  int threads, shared_bytes, cluster;
  bool starts_early;  // before its predecessor in the stream ends, for which it waits itself
  const unsigned char* arguments;
  size_t argument_bytes;
  const Address* addresses;
  int address_count;
  const Map* maps;
  int map_count;
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

static const char* launch(const Stage& stage, char* const* buffers, cudaStream_t stream) {
  alignas(64) unsigned char arguments[1024];
  if (stage.argument_bytes > sizeof(arguments))
    return "the arguments of a kernel are too long";
  std::memcpy(arguments, stage.arguments, stage.argument_bytes);
  for (int i = 0; i < stage.address_count; ++i) {
    const Address& each = stage.addresses[i];
    char* const address = buffers[each.buffer] + each.offset;
    std::memcpy(arguments + each.position, &address, sizeof(address));
  }
  for (int i = 0; i < stage.map_count; ++i) {
    const Map& each = stage.maps[i];
    const cuuint32_t every_element[5] = {1, 1, 1, 1, 1};
    if (!encoder())
      return "the CUDA driver has no cuTensorMapEncodeTiled";
    if (encoder()(reinterpret_cast<CUtensorMap*>(arguments + each.position), each.type, each.rank,
                  buffers[each.buffer] + each.offset, each.sizes, each.strides, each.box, every_element,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, each.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
      return "the CUDA driver refused a tensor map";
  }
  if (const cudaError_t error =
          cudaFuncSetAttribute(stage.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stage.shared_bytes))
    return cudaGetErrorString(error);
  cudaLaunchAttribute attributes[2];
  int attribute_count = 0;
  if (stage.cluster > 1) {
    attributes[attribute_count].id = cudaLaunchAttributeClusterDimension;
    attributes[attribute_count].val.clusterDim.x = stage.cluster;
    attributes[attribute_count].val.clusterDim.y = attributes[attribute_count].val.clusterDim.z = 1;
    ++attribute_count;
  }
  if (stage.starts_early) {
    attributes[attribute_count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[attribute_count].val.programmaticStreamSerializationAllowed = 1;
    ++attribute_count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(stage.grid[0], stage.grid[1], stage.grid[2]);
  config.blockDim = dim3(stage.threads);
  config.dynamicSmemBytes = stage.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = attribute_count;
  void* pointers[] = {arguments};
  const cudaError_t error = cudaLaunchKernelExC(&config, stage.kernel, pointers);
  return error ? cudaGetErrorString(error) : nullptr;
}

}  // namespace planned
