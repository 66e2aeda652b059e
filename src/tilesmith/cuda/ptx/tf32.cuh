// float32 as TF32 on the tensor cores, whose products a warp has in its registers.
#pragma once

namespace tilesmith::ptx {

// The nearest number of 11 bits; of two the even one, before Hopper the larger one: in other modes this is three
// instructions.
__device__ __forceinline__ unsigned to_tf32(float x) {
  unsigned found;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
#endif
  return found;
}

// sum += A B, for A of 16 x 16 and B of 16 x 8, divided among the lanes of a warp as dmma.cuh has them: that is two
// products of half the depth.
__device__ __forceinline__ void mma_tf32(float (&sum)[4], const unsigned (&a)[8], const unsigned (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), "r"(b[2 * i]), "r"(b[2 * i + 1]));
}

}  // namespace tilesmith::ptx
