// The emulator's global memory has no cache: see cuda/ptx/global.cuh.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ Vector<unsigned, 4> load_once(const Vector<unsigned, 4>* from) {
  const auto bits = *reinterpret_cast<const unsigned __int128*>(from);  // one access, as the hooks see it
  return {{static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32), static_cast<unsigned>(bits >> 64),
           static_cast<unsigned>(bits >> 96)}};
}

__device__ __forceinline__ void store(Vector<unsigned, 4>* to, const Vector<unsigned, 4>& value) { *to = value; }

__device__ __forceinline__ void prefetch_to_l2(const void*) {}

__device__ __forceinline__ unsigned arrive(unsigned* count) { return atomicAdd(count, 1u); }

}  // namespace tilesmith::ptx
