// What a warp does together: choosing a lane, moving 8x8 matrices to and from shared memory, and
// taking or giving up registers. One instruction, one function.
#pragma once

#include "ptx/shared.cuh"

namespace tilesmith::ptx {

// True in one lane of the warp.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n.reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n}"
      : "=r"(elected));
  return elected;
}

// The same value, of which the compiler knows nothing: what it computes from it, it does not keep in registers from
// before, or over a loop.
__device__ __forceinline__ unsigned forgotten(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A value that is the same in all lanes, known to be so.
__device__ __forceinline__ int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// The greatest value of all lanes.
__device__ __forceinline__ int warp_max(int value) {
  int greatest;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(greatest) : "r"(value));
  return greatest;
}

template <int registers>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Stores four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void store_matrices(unsigned address, unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}
__device__ __forceinline__ void store_matrices(unsigned address, unsigned x0, unsigned x1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x0), "r"(x1) : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void store_matrices_transposed(unsigned address, unsigned x0, unsigned x1, unsigned x2,
                                                          unsigned x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x0),
               "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(unsigned address, unsigned x0, unsigned x1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x0), "r"(x1)
               : "memory");
}

// Loads four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i, but for an offset
// that is the same in all lanes. A lane gets elements
// 2 (lane % 4) and the next one of row lane / 4, in a register for each matrix.
template <int offset>
__device__ __forceinline__ void load_matrices(unsigned address, unsigned& x0, unsigned& x1, unsigned& x2,
                                              unsigned& x3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
               : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3)
               : "r"(address), "n"(offset)
               : "memory");
}

// The same of the transposed matrices.
template <int offset>
__device__ __forceinline__ void load_matrices_transposed(unsigned address, unsigned& x0, unsigned& x1, unsigned& x2,
                                                         unsigned& x3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
               : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3)
               : "r"(address), "n"(offset)
               : "memory");
}

}  // namespace tilesmith::ptx
