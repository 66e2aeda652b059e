// The block's shared memory by address, as instructions take it. One instruction, one function.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void shared_store(unsigned address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void shared_store(unsigned address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void shared_store(unsigned address, unsigned short bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(bits) : "memory");
}
__device__ __forceinline__ void shared_store(unsigned address, unsigned bits) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}
__device__ __forceinline__ void shared_store(unsigned address, const Vector<unsigned, 4>& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.element[0]), "r"(value.element[1]),
               "r"(value.element[2]), "r"(value.element[3])
               : "memory");
}

__device__ __forceinline__ unsigned shared_load(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ Vector<float, 2> shared_load_pair(unsigned address) {
  Vector<float, 2> value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.element[0]), "=f"(value.element[1])
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ Vector<unsigned, 4> shared_load_vector(unsigned address) {
  Vector<unsigned, 4> value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.element[0]), "=r"(value.element[1]), "=r"(value.element[2]), "=r"(value.element[3])
               : "r"(address)
               : "memory");
  return value;
}

// The value that lies at the same place in another block of the cluster.
__device__ __forceinline__ double shared_load_remote(const double& value, unsigned block) {
  double remote_value;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f64 %0, [remote];\n}"
      : "=d"(remote_value)
      : "r"(shared_address(&value)), "r"(block)
      : "memory");
  return remote_value;
}

}  // namespace tilesmith::ptx
