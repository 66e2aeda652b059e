// Copies from global to shared memory that threads start and do not wait for. One instruction, one function.
#pragma once

namespace tilesmith::ptx {

// Copies the first `valid` of 16 bytes, and writes zeros behind them. With none, the source is not read.
__device__ __forceinline__ void copy_start_16(unsigned to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

// The same through the first cache, for what other warps of the SM need as well.
__device__ __forceinline__ void copy_start_16_cached(unsigned to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

// The same, and L2 reads the line of 128 bytes that it belongs to.
__device__ __forceinline__ void copy_start_16_of_line(unsigned to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

// The same of 4 bytes.
__device__ __forceinline__ void copy_start_4(unsigned to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

// Copies 16 bytes, or writes zeros and does not read the source.
__device__ __forceinline__ void copy_start_16_or_none(unsigned to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, ignored;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<unsigned>(is_valid))
      : "memory");
}

// Copies 4 bytes, or writes zeros and does not read the source.
__device__ __forceinline__ void copy_start_4_or_none(unsigned to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, ignored;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<unsigned>(is_valid))
      : "memory");
}

// Copies 8 bytes, or writes zeros and does not read the source.
__device__ __forceinline__ void copy_start_8_or_none(unsigned to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 8, ignored;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<unsigned>(is_valid))
      : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last `groups` groups have arrived.
template <int groups>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

}  // namespace tilesmith::ptx
