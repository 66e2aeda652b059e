// Tensor-core products of a warpgroup. They are done when the threads wait for them, or with a seed some time before;
// until the wait their registers and their operands in shared memory are theirs.
#pragma once

#include "fragments.h"
#include "machine/memory.h"
#include "matrix_descriptor.h"
#include "tensor_core.h"

namespace tilesmith::emulator {

constexpr int wgmma_rows = 64;

inline Major major_of(bool is_mn) { return is_mn ? Major::mn : Major::k; }

template <typename Visit>
inline void visit_operands(const Product& product, bool a_in_registers, Visit visit) {
  if (!a_in_registers)
    visit_operand(MatrixDescriptor::of(product.a_descriptor), major_of(product.shape.a_mn_major), wgmma_rows, visit);
  visit_operand(MatrixDescriptor::of(product.b_descriptor), major_of(product.shape.b_mn_major), product.shape.columns,
                visit);
}

inline void multiply(Warpgroup& group, Product& product) {
  const int n = product.shape.columns;
  static std::uint16_t a[wgmma_rows * mma_depth], b[256 * mma_depth];
  static float sum[wgmma_rows * 256];
  const unsigned char* window = group.block->window;
  const auto end = static_cast<std::uint32_t>(machine.window_bytes);
  if (product.a[0])
    for (int thread = 0; thread < warpgroup_threads; ++thread) {
      std::uint32_t registers[4];
      std::memcpy(registers, product.a[thread], sizeof registers);
      place_a_registers(a, thread, registers);
    }
  else
    gather(a, MatrixDescriptor::of(product.a_descriptor), major_of(product.shape.a_mn_major), wgmma_rows, window, 0,
           end);
  gather(b, MatrixDescriptor::of(product.b_descriptor), major_of(product.shape.b_mn_major), n, window, 0, end);
  const auto visit_sums = [&](auto visit) {
    for (int thread = 0; thread < warpgroup_threads; ++thread)
      for (int i = 0; i < n / 2; ++i) {
        const Place place = wgmma_sum_place(thread, i);
        visit(sum[place.row * n + place.column], product.sums[thread][i]);
      }
  };
  visit_sums([](float& element, float in_register) { element = in_register; });
  multiply_add<wgmma_rows>(product.shape.format, sum, a, b, n, product.accumulate);
  visit_sums([](float element, float& in_register) { in_register = element; });
  product.is_done = true;
}

inline void check_descriptor(Site site, std::uint64_t descriptor, bool is_mn) {
  const std::string wrong = fault_of(MatrixDescriptor::of(descriptor), major_of(is_mn));
  if (!wrong.empty())
    fault(site, "a matrix descriptor is wrong: " + wrong);
}

// These registers are a product's from now on.
inline void hold(Fiber& self, Site site, const void* begin, std::uint64_t bytes, bool are_sums, long product) {
  const auto* at = static_cast<const unsigned char*>(begin);
  if (!self.has_product_fence)
    fault(site, "a product with no wgmma.fence before it");
  if (self.written.any(static_cast<std::uint64_t>(at - self.stack), bytes))
    fault(site,
          text("a product of registers that were written with no wgmma.fence since (its %s)", are_sums ? "sums" : "A"));
  for (HeldRegisters& held : self.held)
    if (held.begin == at && held.bytes == bytes && held.are_sums == are_sums) {
      held.last_product = product;
      return;
    }
  // What overlaps is of other variables, which are no more.
  auto& all = self.held;
  all.erase(std::remove_if(
                all.begin(), all.end(),
                [&](const HeldRegisters& held) { return held.begin < at + bytes && at < held.begin + held.bytes; }),
            all.end());
  all.push_back({at, bytes, are_sums, product});
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  self.held_begin = self.held_end == 0 ? first : std::min(self.held_begin, first);
  self.held_end = std::max(self.held_end, first + bytes);
}

inline Warpgroup& warpgroup_of(Fiber& fiber) {
  return fiber.block->warpgroups[static_cast<std::size_t>(fiber.number / warpgroup_threads)];
}

inline void check_registers(Fiber& fiber, Site site, Access access, std::uintptr_t address, std::uint64_t bytes) {
  const long done = warpgroup_of(fiber).first_product;
  const auto* at = reinterpret_cast<const unsigned char*>(address);
  for (const HeldRegisters& held : fiber.held) {
    if (at >= held.begin + held.bytes || held.begin >= at + bytes)
      continue;
    if (held.last_product >= done && (held.are_sums || access == Access::write))
      fault(site,
            text("%s %s of a product that it has not waited for", verb(access), held.are_sums ? "the sums" : "the A"));
  }
}

void product(float* sum, const unsigned* a, std::uint64_t a_descriptor, std::uint64_t b_descriptor, bool accumulate,
             ProductShape shape) {
  const Site site = __builtin_return_address(0);
  Fiber& self = *machine.current;
  Warpgroup& group = warpgroup_of(self);
  const long number = self.products++;
  const auto which = static_cast<std::size_t>(number - group.first_product);
  hold(self, site, sum, static_cast<std::uint64_t>(shape.columns) * 2, true, number);
  if (a)
    hold(self, site, a, 16, false, number);
  if (which == group.products.size()) {
    const Product fresh = {a_descriptor, b_descriptor, accumulate, shape, site};
    if (!a)
      check_descriptor(site, a_descriptor, shape.a_mn_major);
    check_descriptor(site, b_descriptor, shape.b_mn_major);
    visit_operands(fresh, a != nullptr,
                   [&](std::uint32_t address, int, int) { begin_reading(*self.block, site, address, granule_bytes); });
    group.products.push_back(fresh);
  }
  Product& product = group.products[which];
  if (product.a_descriptor != a_descriptor || product.b_descriptor != b_descriptor || product.accumulate != accumulate)
    fault(site, "a product whose descriptors are not the same in all threads of the warpgroup");
  const int thread = self.number % warpgroup_threads;
  product.sums[thread] = sum;
  product.a[thread] = a;
  ++product.issued;
}

void product_fence() {
  Fiber& self = *machine.current;
  self.has_product_fence = true;
  self.written.fence();
}

void product_commit() {
  Fiber& self = *machine.current;
  Warpgroup& group = warpgroup_of(self);
  const auto which = static_cast<std::size_t>(self.product_groups++);
  if (which == group.group_ends.size())
    group.group_ends.push_back(self.products);
  else if (group.group_ends[which] != self.products)
    fault(__builtin_return_address(0), "a group of other products than that of other threads of the warpgroup");
}

inline void finish_products(Warpgroup& group, long end) {
  while (group.first_product < end) {
    Product& product = group.products.front();
    if (product.issued != warpgroup_threads)
      fault(product.site, text("a product that only %d of the warpgroup's %d threads have started", product.issued,
                               warpgroup_threads));
    if (!product.is_done)
      multiply(group, product);
    visit_operands(product, product.a[0] != nullptr,
                   [&](std::uint32_t address, int, int) { end_reading(*group.block, address, granule_bytes); });
    group.products.pop_front();
    ++group.first_product;
  }
}

void product_wait(int groups) {
  Fiber& self = *machine.current;
  Warpgroup& group = warpgroup_of(self);
  if (++group.arrived < group.live)
    return wait_for({Wait::Kind::warpgroup, __builtin_return_address(0), 0, nullptr, 0});
  group.arrived = 0;
  const long finished = self.product_groups - groups;
  if (finished > 0)
    finish_products(group, group.group_ends[static_cast<std::size_t>(finished - 1)]);
  for (int thread = 0; thread < group.threads; ++thread)
    if (group.first[thread].wait.kind == Wait::Kind::warpgroup)
      make_runnable(&group.first[thread]);
  maybe_yield();
}

void advance_products_at_random() {
  for (Block& block : machine.blocks)
    for (Warpgroup& group : block.warpgroups)
      for (Product& product : group.products)
        if (!product.is_done) {
          if (product.issued == warpgroup_threads && one_in(2))
            multiply(group, product);
          break;
        }
}

}  // namespace tilesmith::emulator
