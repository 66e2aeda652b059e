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

// Four matrices, or two: a register each.
template <typename... Registers>
__device__ __forceinline__ void store_matrices(unsigned address, Registers... registers) {
  const unsigned all[] = {registers...};
  emulator::store_matrices(address, all, sizeof...(registers), false);
}
template <typename... Registers>
__device__ __forceinline__ void store_matrices_transposed(unsigned address, Registers... registers) {
  const unsigned all[] = {registers...};
  emulator::store_matrices(address, all, sizeof...(registers), true);
}

template <int offset>
__device__ __forceinline__ void load_matrices(unsigned address, unsigned& x0, unsigned& x1, unsigned& x2,
                                              unsigned& x3) {
  unsigned all[4];
  emulator::load_matrices(address + offset, all, 4, false);
  x0 = all[0], x1 = all[1], x2 = all[2], x3 = all[3];
}
template <int offset>
__device__ __forceinline__ void load_matrices_transposed(unsigned address, unsigned& x0, unsigned& x1, unsigned& x2,
                                                         unsigned& x3) {
  unsigned all[4];
  emulator::load_matrices(address + offset, all, 4, true);
  x0 = all[0], x1 = all[1], x2 = all[2], x3 = all[3];
}

}  // namespace tilesmith::ptx
