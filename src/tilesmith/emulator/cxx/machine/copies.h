// Copies from global to shared memory that a thread starts, and waits for by groups. With a seed some are done early.
#pragma once

#include "machine/memory.h"

namespace tilesmith::emulator {

inline void deliver(Block& block, const PendingCopy& copy) {
  std::memcpy(block.window + copy.to, copy.from, static_cast<std::size_t>(copy.valid));
  std::memset(block.window + copy.to + copy.valid, 0, static_cast<std::size_t>(copy.bytes - copy.valid));
  end_flight(block, copy.to, static_cast<unsigned>(copy.bytes));
}

void copy_start(unsigned to, const void* from, int bytes, int valid) {
  const Site site = __builtin_return_address(0);
  Fiber& self = *machine.current;
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  if (valid < 0 || valid > bytes)
    fault(site, text("a copy of %d bytes, %d of them valid", bytes, valid));
  const auto size = static_cast<unsigned>(bytes);
  if (to % size)
    misaligned(site, Access::write, window_begin + to, size);
  if (address % size)
    misaligned(site, Access::read, address, size);
  if (valid > 0)
    check_global(site, Access::read, address, static_cast<std::uint64_t>(valid));
  begin_flight(*self.block, site, to, static_cast<unsigned>(bytes));
  self.copies.push_back({to, static_cast<const unsigned char*>(from), bytes, valid, self.copy_groups});
  if (one_in(4)) {
    auto& copies = self.copies;
    std::swap(copies[random_number() % copies.size()], copies.back());
    deliver(*self.block, copies.back());
    copies.pop_back();
  }
}

void copy_commit() { ++machine.current->copy_groups; }

inline void deliver_before(Fiber& fiber, int group) {
  auto& copies = fiber.copies;
  std::size_t kept = 0;
  for (const PendingCopy& copy : copies)
    if (copy.group < group)
      deliver(*fiber.block, copy);
    else
      copies[kept++] = copy;
  copies.resize(kept);
}

void copy_wait(int groups) {
  deliver_before(*machine.current, machine.current->copy_groups - groups);
  maybe_yield();
}

}  // namespace tilesmith::emulator
