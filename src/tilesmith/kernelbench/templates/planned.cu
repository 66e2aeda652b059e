// Launches plans. The text before this has their kernels in namespace planned, the text after it their tables.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace planned {

constexpr int buffer_count = 5;

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

struct alignas(64) Parameters {
  unsigned char bytes[1024];
};
// What the launches of a plan are told where its buffers are at these addresses. A program's tensors come back to the
// same few, so that this is found out once for each of them.
struct Filled {
  void* buffers[buffer_count] = {};
  std::vector<Parameters> parameters;
};
// What a thread knows of a plan.
struct Known {
  std::vector<Filled> filled;
  size_t next = 0;      // to be forgotten
  std::set<int> ready;  // GPUs whose kernels may have their shared memory
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

static const char* fill(Parameters& parameters, const Launch& x, void* const* buffers) {
  if (x.parameter_bytes > sizeof(parameters))
    return "the parameters of a kernel are too long";
  const auto address_in = [&](int buffer, long long offset) { return static_cast<char*>(buffers[buffer]) + offset; };
  std::memcpy(parameters.bytes, x.parameters, x.parameter_bytes);
  for (int i = 0; i < x.address_count; ++i) {
    const Address& each = x.addresses[i];
    char* const address = address_in(each.buffer, each.offset);
    std::memcpy(parameters.bytes + each.position, &address, sizeof(address));
  }
  for (int i = 0; i < x.map_count; ++i) {
    const Map& each = x.maps[i];
    const cuuint32_t every_element[5] = {1, 1, 1, 1, 1};
    if (!encoder())
      return "the CUDA driver has no cuTensorMapEncodeTiled";
    if (encoder()(reinterpret_cast<CUtensorMap*>(parameters.bytes + each.position), each.type, each.rank,
                  address_in(each.buffer, each.offset), each.sizes, each.strides, each.box, every_element,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, each.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
      return "the CUDA driver refused a tensor map";
  }
  return nullptr;
}

static const char* launch(const Launch& x, Parameters& parameters, cudaStream_t stream) {
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
  void* pointers[] = {parameters.bytes};
  const cudaError_t error = cudaLaunchKernelExC(&config, x.kernel, pointers);
  return error ? cudaGetErrorString(error) : nullptr;
}

static const char* launch_all(const Plan& plan, Known& known, int device, void* const* buffers, cudaStream_t stream) {
  constexpr size_t most = 8;
  const auto is_of_these = [&](const Filled& each) {
    return std::equal(buffers, buffers + buffer_count, each.buffers);
  };
  auto found = std::find_if(known.filled.begin(), known.filled.end(), is_of_these);
  if (found == known.filled.end()) {
    Filled filled;
    filled.parameters.resize(plan.count);
    for (int i = 0; i < plan.count; ++i)
      if (const char* error = fill(filled.parameters[i], plan.launches[i], buffers))
        return error;
    std::copy(buffers, buffers + buffer_count, filled.buffers);
    if (known.filled.size() < most)
      known.filled.emplace_back();
    found = known.filled.begin() + known.next;
    *found = std::move(filled);
    known.next = (known.next + 1) % most;
  }
  if (known.ready.count(device) == 0) {
    for (int i = 0; i < plan.count; ++i) {
      const Launch& x = plan.launches[i];
      if (const auto error =
              cudaFuncSetAttribute(x.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, x.shared_bytes))
        return cudaGetErrorString(error);
    }
    known.ready.insert(device);
  }
  for (int i = 0; i < plan.count; ++i)
    if (const char* error = launch(plan.launches[i], found->parameters[i], stream))
      return error;
  return nullptr;
}

}  // namespace planned
