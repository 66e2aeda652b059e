// The emulator's shared memory by address: see cuda/ptx/shared.cuh. Accesses are checked by the compiler's hooks.
#pragma once

#include "vector.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <typename Value>
__device__ __forceinline__ Value& shared_at(unsigned address) {
  return *reinterpret_cast<Value*>(emulator::own(emulator::shared_window) + address);
}

__device__ __forceinline__ void shared_store(unsigned address, float x) { shared_at<float>(address) = x; }
__device__ __forceinline__ void shared_store(unsigned address, float x, float y) {
  shared_at<Vector<float, 2>>(address) = {{x, y}};
}
__device__ __forceinline__ void shared_store(unsigned address, unsigned short bits) {
  shared_at<unsigned short>(address) = bits;
}
__device__ __forceinline__ void shared_store(unsigned address, unsigned bits) { shared_at<unsigned>(address) = bits; }
__device__ __forceinline__ void shared_store(unsigned address, const Vector<unsigned, 4>& value) {
  shared_at<Vector<unsigned, 4>>(address) = value;
}
__device__ __forceinline__ unsigned shared_load(unsigned address) { return shared_at<unsigned>(address); }
__device__ __forceinline__ Vector<float, 2> shared_load_pair(unsigned address) {
  return shared_at<Vector<float, 2>>(address);
}
__device__ __forceinline__ Vector<unsigned, 4> shared_load_vector(unsigned address) {
  return shared_at<Vector<unsigned, 4>>(address);
}
__device__ __forceinline__ double shared_load_remote(const double& value, unsigned block) {
  return emulator::double_of(emulator::load_remote(&value, block));
}

}  // namespace tilesmith::ptx
