// Stores of what this kernel does not read again: caches keep other lines rather than these. One instruction, one
// function.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ void store_once(float* to, float value) {
  asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

__device__ __forceinline__ void store_once(Vector<float, 4>* to, const Vector<float, 4>& value) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.element[0]), "f"(value.element[1]),
               "f"(value.element[2]), "f"(value.element[3])
               : "memory");
}

}  // namespace tilesmith::ptx
