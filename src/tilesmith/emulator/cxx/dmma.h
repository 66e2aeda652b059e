// The tensor cores' product of doubles, mma.m16n8k16, on the registers of a whole warp: cuda/ptx/dmma.cuh says who has
// what. Each element is a chain of fused multiplications and additions along K: assumed, not measured.
#pragma once

#include <cmath>

namespace tilesmith::emulator {

constexpr int lanes = 32;  // of a warp

// sum += A B
inline void dmma(double (&sum)[lanes][4], const double (&a)[lanes][8], const double (&b)[lanes][4]) {
  for (int lane = 0; lane < lanes; ++lane)
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e) {
        const int row_lane = lane / 4 * 4, column_lane = (lane % 4 * 2 + e) * 4;
        double& element = sum[lane][2 * h + e];
        for (int k = 0; k < 16; ++k)
          element = std::fma(a[row_lane + k % 4][k / 4 * 2 + h], b[column_lane + k % 4][k / 4], element);
      }
}

}  // namespace tilesmith::emulator
