// The emulator's copies to shared memory: see cuda/ptx/copy.cuh.
#pragma once

namespace tilesmith::ptx {

__device__ __forceinline__ void copy_start_16(unsigned to, const void* from, int valid) {
  emulator::copy_start(to, from, 16, valid);
}
__device__ __forceinline__ void copy_start_16_cached(unsigned to, const void* from, int valid) {
  emulator::copy_start(to, from, 16, valid);
}
__device__ __forceinline__ void copy_start_16_of_line(unsigned to, const void* from, int valid) {
  emulator::copy_start(to, from, 16, valid);
}
__device__ __forceinline__ void copy_start_4(unsigned to, const void* from, int valid) {
  emulator::copy_start(to, from, 4, valid);
}
__device__ __forceinline__ void copy_start_16_or_none(unsigned to, const void* from, bool is_valid) {
  emulator::copy_start(to, from, 16, is_valid ? 16 : 0);
}
__device__ __forceinline__ void copy_start_4_or_none(unsigned to, const void* from, bool is_valid) {
  emulator::copy_start(to, from, 4, is_valid ? 4 : 0);
}
__device__ __forceinline__ void copy_start_8_or_none(unsigned to, const void* from, bool is_valid) {
  emulator::copy_start(to, from, 8, is_valid ? 8 : 0);
}

__device__ __forceinline__ void copy_commit() { emulator::copy_commit(); }
template <int groups>
__device__ __forceinline__ void copy_wait() {
  emulator::copy_wait(groups);
}

}  // namespace tilesmith::ptx
