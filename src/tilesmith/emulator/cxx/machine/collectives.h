// What the lanes of a warp do together: they wait for each other, and the last one does it for all.
#pragma once

#include <algorithm>

#include "fragments.h"
#include "machine/memory.h"
#include "machine/scheduler.h"
#include "tensor_core.h"

namespace tilesmith::emulator {

inline void shuffle_all(Warp& warp) {
  for (int lane = 0; lane < lanes; ++lane) {
    const Contribution& own = warp.first[lane].own;
    int from = own.argument % lanes;
    if (own.how == Shuffle::exclusive_or)
      from = lane ^ own.argument;
    else if (own.how == Shuffle::up)
      from = lane - own.argument;
    warp.first[lane].result = warp.first[from < 0 || from >= lanes ? lane : from].own.value;
  }
}

inline void maximum_of_all(Warp& warp) {
  auto greatest = static_cast<std::int32_t>(warp.first[0].own.value);
  for (int lane = 1; lane < lanes; ++lane)
    greatest = std::max(greatest, static_cast<std::int32_t>(warp.first[lane].own.value));
  for (int lane = 0; lane < lanes; ++lane) warp.first[lane].result = static_cast<std::uint32_t>(greatest);
}

// The register file has 64 K of them; a block that asks for more would wait for ever. How many a warp has at first is
// the GPU's compiler's business.
inline void take_registers(Warp& warp) {
  constexpr int file = 64 * 1024;
  const Contribution& own = warp.first->own;
  const int wanted = own.argument;
  if (wanted % 8 || wanted < 24 || wanted > 256)
    fault(own.site, text("setmaxnreg of %d registers, not a multiple of 8 from 24 to 256", wanted));
  if (warp.registers && (own.value ? wanted < warp.registers : wanted > warp.registers))
    fault(own.site, text("setmaxnreg.%s to %d of a warp that has %d registers", own.value ? "inc" : "dec", wanted,
                         warp.registers));
  warp.registers = wanted;
  int sum = 0;
  bool are_all_set = true;
  for (const Warp& each : warp.first->block->warps) {
    are_all_set &= each.registers != 0;
    sum += each.registers * lanes;
  }
  if (are_all_set && sum > file)
    fault(own.site, text("setmaxnreg: the block's warps want %d registers, and there are %d", sum, file));
}

inline void multiply_doubles(Warp& warp) {
  double sum[lanes][4], a[lanes][8], b[lanes][4];
  for (int lane = 0; lane < lanes; ++lane) {
    const double* from = warp.first[lane].own.doubles;
    std::copy_n(from, 4, sum[lane]);
    std::copy_n(from + 4, 8, a[lane]);
    std::copy_n(from + 12, 4, b[lane]);
  }
  dmma(sum, a, b);
  for (int lane = 0; lane < lanes; ++lane) std::copy_n(sum[lane], 4, warp.first[lane].double_sums.at);
}

// Who has what, int8_mma.cuh says.
inline void multiply_bytes(Warp& warp) {
  const bool are_signed = warp.first->own.argument != 0;
  const auto factor = [&](int lane, int in_register, int byte) {
    const std::uint32_t bits = warp.first[lane].own.registers[in_register] >> (8 * byte) & 0xff;
    return are_signed ? static_cast<std::uint32_t>(static_cast<std::int8_t>(bits)) : bits;
  };
  for (int lane = 0; lane < lanes; ++lane)
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e) {
        const int row_lane = lane / 4 * 4, column_lane = (lane % 4 * 2 + e) * 4;
        auto sum = static_cast<std::uint32_t>(warp.first[lane].own.integers[2 * h + e]);
        for (int k = 0; k < 32; ++k) {
          const int step = k % 16 / 4, half = k / 16;
          sum += factor(row_lane + step, 2 * half + h, k % 4) * factor(column_lane + step, 4 + half, k % 4);
        }
        warp.first[lane].integer_sums.at[2 * h + e] = static_cast<int>(sum);
      }
}

inline void multiply_all(Warp& warp) {
  constexpr int rows = 16, columns = 8;
  float sum[rows * columns];
  std::uint16_t a[rows * mma_depth], b[columns * mma_depth];
  const auto visit_sums = [&](auto visit) {
    for (int lane = 0; lane < lanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const Place place = wgmma_sum_place(lane, i);
        visit(sum[place.row * columns + place.column], warp.first[lane], i);
      }
  };
  for (int lane = 0; lane < lanes; ++lane) {
    const unsigned* registers = warp.first[lane].own.registers;
    place_a_registers(a, lane, {registers[0], registers[1], registers[2], registers[3]});
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < 2; ++e) {
        const Place place = mma_b_place(lane, i, e);
        b[place.row * mma_depth + place.column] = e ? high_of(registers[4 + i]) : low_of(registers[4 + i]);
      }
  }
  visit_sums([](float& element, const Fiber& from, int i) { element = from.own.floats[i]; });
  multiply_add<rows>(static_cast<Format>(warp.first->own.argument), sum, a, b, columns, true);
  visit_sums([](float element, Fiber& to, int i) { to.float_sums.at[i] = element; });
}

// A matrix passes at once if its rows lie in different banks.
inline void count_bank_conflicts(const Warp& warp, int matrices) {
  constexpr int places = 8;  // of 16 bytes in all banks
  for (int matrix = 0; matrix < matrices; ++matrix) {
    int rows[places] = {}, most = 1;
    for (int row = 0; row < 8; ++row)
      most = std::max(most, ++rows[warp.first[matrix_row_lane(matrix, row)].own.address / 16 % places]);
    *machine.launch->bank_conflicts += static_cast<std::uint64_t>(most - 1);
  }
}

// Each row is read or written by the lane that gives its address.
template <typename Check>
void check_rows(const Warp& warp, int matrices, Access access, Check check_shared) {
  Fiber* last = machine.current;
  for (int matrix = 0; matrix < matrices; ++matrix)
    for (int row = 0; row < 8; ++row) {
      Fiber& giver = warp.first[matrix_row_lane(matrix, row)];
      machine.current = &giver;
      const unsigned address = giver.own.address;
      check_window(giver.own.site, access, address, 16);
      if (address % 16)
        misaligned(giver.own.site, access, window_begin + address, 16);
      check_shared(*giver.block, giver.own.site, address, 16);
    }
  machine.current = last;
}

inline void store_all_matrices(Warp& warp) {
  const int matrices = warp.first->own.argument;
  const bool transposed = warp.first->own.value != 0;
  count_bank_conflicts(warp, matrices);
  check_rows(warp, matrices, Access::write, check_shared_write);
  const Block& block = *warp.first->block;
  for (int matrix = 0; matrix < matrices; ++matrix)
    for (int lane = 0; lane < lanes; ++lane)
      for (int e = 0; e < 2; ++e) {
        const Place place = matrix_place(lane, e, transposed);
        const std::uint32_t pair = warp.first[lane].own.registers[matrix];
        const std::uint16_t half = e ? high_of(pair) : low_of(pair);
        const unsigned row = warp.first[matrix_row_lane(matrix, place.row)].own.address;
        std::memcpy(block.window + row + 2 * place.column, &half, sizeof half);
      }
}

inline void load_all_matrices(Warp& warp) {
  const int matrices = warp.first->own.argument;
  const bool transposed = warp.first->own.value != 0;
  count_bank_conflicts(warp, matrices);
  check_rows(warp, matrices, Access::read, check_shared_read);
  const Block& block = *warp.first->block;
  for (int matrix = 0; matrix < matrices; ++matrix)
    for (int lane = 0; lane < lanes; ++lane) {
      std::uint16_t halves[2];
      for (int e = 0; e < 2; ++e) {
        const Place place = matrix_place(lane, e, transposed);
        const unsigned row = warp.first[matrix_row_lane(matrix, place.row)].own.address;
        std::memcpy(&halves[e], block.window + row + 2 * place.column, sizeof halves[e]);
      }
      std::memcpy(&warp.first[lane].own.registers[matrix], halves, sizeof halves);
    }
}

inline void elect_first(Warp& warp) {
  for (int lane = 0; lane < lanes; ++lane) warp.first[lane].result = lane == 0;
}

constexpr Together warp_barriers = {"__syncwarp", [](Warp&) {}}, shuffles = {"a shuffle", shuffle_all},
                   maxima = {"redux.sync", maximum_of_all}, elections = {"elect.sync", elect_first},
                   register_counts = {"setmaxnreg", take_registers},
                   products_of_doubles = {"mma.sync of doubles", multiply_doubles},
                   products_of_bytes = {"mma.sync of bytes", multiply_bytes}, products = {"mma.sync", multiply_all},
                   matrix_stores = {"stmatrix", store_all_matrices}, matrix_loads = {"ldmatrix", load_all_matrices};

inline void finish_together(Warp& warp) {
  warp.what->finish(warp);
  warp.arrived = 0;
  for (int lane = 0; lane < lanes; ++lane)
    if (warp.first[lane].wait.kind == Wait::Kind::warp)
      make_runnable(&warp.first[lane]);
}

// This lane's part of what all lanes do. They go on when all have come.
inline void together(const Together& what, Site site) {
  Fiber& self = *machine.current;
  Warp& warp = *self.warp;
  if (warp.arrived && warp.what != &what)
    fault(site, text("%s, while other lanes of the warp are at %s: they have diverged", what.name, warp.what->name));
  if (&what != &warp_barriers && warp.live < lanes)
    fault(site, text("%s of all lanes of a warp, of which %d have ended", what.name, lanes - warp.live));
  warp.what = &what;
  self.own.site = site;
  if (++warp.arrived < warp.live) {
    wait_for({Wait::Kind::warp, site, 0, nullptr, 0});
    return;
  }
  finish_together(warp);
  maybe_yield();
}

void warp_barrier() { together(warp_barriers, __builtin_return_address(0)); }

std::uint64_t shuffle(std::uint64_t value, Shuffle how, int lane) {
  Fiber& self = *machine.current;
  self.own.value = value;
  self.own.how = how;
  self.own.argument = lane;
  together(shuffles, __builtin_return_address(0));
  return self.result;
}

int warp_max(int value) {
  Fiber& self = *machine.current;
  self.own.value = static_cast<std::uint32_t>(value);
  together(maxima, __builtin_return_address(0));
  return static_cast<int>(self.result);
}

bool elect() {
  Fiber& self = *machine.current;
  together(elections, __builtin_return_address(0));
  return self.result != 0;
}

void set_registers(int registers, bool increases) {
  Contribution& own = machine.current->own;
  own.argument = registers;
  own.value = increases;
  together(register_counts, __builtin_return_address(0));
}

DoubleSums dmma(double s0, double s1, double s2, double s3, double a0, double a1, double a2, double a3, double a4,
                double a5, double a6, double a7, double b0, double b1, double b2, double b3) {
  Fiber& self = *machine.current;
  const double values[] = {s0, s1, s2, s3, a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3};
  std::copy_n(values, 16, self.own.doubles);
  together(products_of_doubles, __builtin_return_address(0));
  return self.double_sums;
}

FloatSums mma(Format format, float s0, float s1, float s2, float s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
              unsigned b0, unsigned b1) {
  Fiber& self = *machine.current;
  const float sums[] = {s0, s1, s2, s3};
  const unsigned factors[] = {a0, a1, a2, a3, b0, b1};
  std::copy_n(sums, 4, self.own.floats);
  std::copy_n(factors, 6, self.own.registers);
  self.own.argument = static_cast<int>(format);
  together(products, __builtin_return_address(0));
  return self.float_sums;
}

IntegerSums mma_of_bytes(bool are_signed, int s0, int s1, int s2, int s3, unsigned a0, unsigned a1, unsigned a2,
                         unsigned a3, unsigned b0, unsigned b1) {
  Fiber& self = *machine.current;
  const int sums[] = {s0, s1, s2, s3};
  const unsigned factors[] = {a0, a1, a2, a3, b0, b1};
  std::copy_n(sums, 4, self.own.integers);
  std::copy_n(factors, 6, self.own.registers);
  self.own.argument = are_signed;
  together(products_of_bytes, __builtin_return_address(0));
  return self.integer_sums;
}

void store_matrices(unsigned address, const unsigned* registers, int matrices, bool transposed) {
  Contribution& own = machine.current->own;
  std::copy_n(registers, matrices, own.registers);
  own.address = address;
  own.argument = matrices;
  own.value = transposed;
  together(matrix_stores, __builtin_return_address(0));
}

void load_matrices(unsigned address, unsigned* registers, int matrices, bool transposed) {
  Contribution& own = machine.current->own;
  own.address = address;
  own.argument = matrices;
  own.value = transposed;
  together(matrix_loads, __builtin_return_address(0));
  std::copy_n(own.registers, matrices, registers);
}

// Those who have left the kernel are not waited for.
inline void leave_warp(Warp& warp) {
  if (--warp.live > 0 && warp.arrived == warp.live)
    finish_together(warp);
}

}  // namespace tilesmith::emulator
