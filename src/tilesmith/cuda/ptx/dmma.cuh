// The tensor cores' product of doubles.
#pragma once

namespace tilesmith::ptx {

// sum += A B, for A of 16 x 16 and B of 16 x 8, divided among the lanes of a warp. With row = lane / 4 and
// step = lane % 4, a lane has in a[2 i + h] the element (row + 8 h, 4 i + step) of A, in b[i] the element
// (4 i + step, row) of B, and in sum[2 h + e] the element (row + 8 h, 2 step + e).
__device__ __forceinline__ void dmma(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
#else
  // Of 8 x 4 by 4 x 8: a lane has one element of each factor, (row, step) and (step, row).
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(sum[2 * h]), "+d"(sum[2 * h + 1])
          : "d"(a[2 * i + h]), "d"(b[i]));
#endif
}

}  // namespace tilesmith::ptx
