// Global memory. One instruction, one function.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

// Of what is not needed again: caches keep other lines rather than this one.
__device__ __forceinline__ Vector<unsigned, 4> load_once(const Vector<unsigned, 4>* from) {
  Vector<unsigned, 4> value;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.element[0]), "=r"(value.element[1]), "=r"(value.element[2]), "=r"(value.element[3])
               : "l"(from));
  return value;
}

// 16 bytes by one access, whatever they were computed from.
__device__ __forceinline__ void store(Vector<unsigned, 4>* to, const Vector<unsigned, 4>& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.element[0]), "r"(value.element[1]),
               "r"(value.element[2]), "r"(value.element[3])
               : "memory");
}

// Has L2 read the line that an address is in.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Counts a block, of which one thread calls this, and returns how many were counted before. What those wrote until
// then, this one sees: of each block all that came before a barrier with that thread.
__device__ __forceinline__ unsigned arrive(unsigned* count) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

}  // namespace tilesmith::ptx
