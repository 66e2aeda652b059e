// What a warp does together, emulated: see cuda/ptx/warp.cuh.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

__device__ __forceinline__ unsigned forgotten(unsigned value) { return value; }
__device__ __forceinline__ bool elect_one() { return emulator::elect(); }
__device__ __forceinline__ int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ int warp_max(int value) { return emulator::warp_max(value); }

template <int registers>
__device__ __forceinline__ void registers_decrease() {
  emulator::set_registers(registers, false);
}
template <int registers>
__device__ __forceinline__ void registers_increase() {
  emulator::set_registers(registers, true);
}

__device__ __forceinline__ void store_matrices(unsigned address, unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
  const unsigned registers[] = {x0, x1, x2, x3};
  emulator::store_matrices(address, registers, 4, false);
}
__device__ __forceinline__ void store_matrices(unsigned address, unsigned x0, unsigned x1) {
  const unsigned registers[] = {x0, x1};
  emulator::store_matrices(address, registers, 2, false);
}
__device__ __forceinline__ void store_matrices_transposed(unsigned address, unsigned x0, unsigned x1, unsigned x2,
                                                          unsigned x3) {
  const unsigned registers[] = {x0, x1, x2, x3};
  emulator::store_matrices(address, registers, 4, true);
}
__device__ __forceinline__ void store_matrices_transposed(unsigned address, unsigned x0, unsigned x1) {
  const unsigned registers[] = {x0, x1};
  emulator::store_matrices(address, registers, 2, true);
}

}  // namespace tilesmith::ptx
