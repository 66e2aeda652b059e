// Which elements of a matrix the registers of a thread hold, for the instructions that a warp or a warpgroup does
// together.
#pragma once

#include <cstdint>

#include "formats.h"

namespace tilesmith::emulator {

constexpr int warpgroup_threads = 128;

struct Place {
  int row, column;
};

// wgmma: register i of a thread's sums, in 64 x N.
inline Place wgmma_sum_place(int thread, int i) {
  const int warp = thread / 32, lane = thread % 32;
  return {16 * warp + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

// wgmma: half `e` of register i of a thread's part of A, in 64 x 16.
inline Place wgmma_a_place(int thread, int i, int e) {
  const int warp = thread / 32, lane = thread % 32;
  return {16 * warp + lane / 4 + i % 2 * 8, i / 2 * 8 + lane % 4 * 2 + e};
}

// mma: half `e` of register i of a lane's part of B, in 8 x 16, column by column. A and the sums lie as those of
// wgmma's first warp.
inline Place mma_b_place(int lane, int i, int e) { return {lane / 4, i * 8 + lane % 4 * 2 + e}; }

// A thread's part of A into a matrix of 64 x 16.
inline void place_a_registers(std::uint16_t* matrix, int thread, const std::uint32_t (&registers)[4]) {
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const Place place = wgmma_a_place(thread, i, e);
      matrix[place.row * 16 + place.column] = e ? high_of(registers[i]) : low_of(registers[i]);
    }
}

// stmatrix and ldmatrix: half `e` of a lane's register, in the 8x8 matrix as it lies in shared memory.
inline Place matrix_place(int lane, int e, bool transposed) {
  const int across = lane / 4, along = lane % 4 * 2 + e;
  return transposed ? Place{along, across} : Place{across, along};
}

// The lane that gives the address of a row of one of the matrices. The row's eight elements follow that address.
inline int matrix_row_lane(int matrix, int row) { return 8 * matrix + row; }

}  // namespace tilesmith::emulator
