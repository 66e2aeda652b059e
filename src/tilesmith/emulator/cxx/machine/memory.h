// Checks of accesses to memory: global memory must be inside of a buffer, shared memory inside of the block's and
// written before it is read, and nothing may be touched that asynchronous work has.
#pragma once

#include <cstring>

#include "machine/faults.h"
#include "machine/scheduler.h"
#include "machine/state.h"

namespace tilesmith::emulator {

enum class Access { read, write };

inline const char* verb(Access access) { return access == Access::read ? "reads" : "writes"; }

inline const char* name_of(ByteState state) {
  constexpr const char* names[] = {"that nobody has written", "", "that an asynchronous copy has not delivered yet",
                                   "that are an mbarrier"};
  return names[static_cast<int>(state)];
}

[[noreturn, gnu::noinline]] inline void fault_at(Site site, Access access, unsigned address, std::uint64_t bytes,
                                                 const std::string& why) {
  fault(site,
        text("%s %lu bytes of shared memory at %u ", verb(access), static_cast<unsigned long>(bytes), address) + why);
}

inline std::string place_among_buffers(std::uintptr_t address, std::uint64_t bytes) {
  constexpr std::uint64_t far = 1 << 30;
  std::string nearest = "outside of every buffer";
  std::uint64_t least = far;
  for (std::uint32_t i = 0; i < machine.launch->buffer_count; ++i) {
    const Buffer& buffer = machine.launch->buffers[i];
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.begin), end = begin + buffer.bytes;
    const std::uint64_t distance = address < begin ? begin - address : address + bytes - end;
    if (distance < least) {
      least = distance;
      nearest = text("outside of every buffer: %lu %s %s, which has %lu", static_cast<unsigned long>(distance),
                     address < begin ? "before the beginning of" : "past the end of", buffer.name,
                     static_cast<unsigned long>(buffer.bytes));
    }
  }
  return nearest;
}

// clang reads a vector of 16 bytes in halves.
#if defined(__clang__)
constexpr std::uint64_t least_part_of_vector = 8;
#else
constexpr std::uint64_t least_part_of_vector = 16;
#endif

// Of an aligned vector of 16 bytes that is read, some bytes may be outside: a GPU's memory comes in such vectors.
[[gnu::noinline]] inline void check_global(Site site, Access access, std::uintptr_t address, std::uint64_t bytes) {
  const Launch& launch = *machine.launch;
  for (std::uint32_t i = 0; i < launch.buffer_count; ++i) {
    const Buffer& buffer = launch.buffers[i];
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.begin), end = begin + buffer.bytes;
    const bool is_vector = access == Access::read && bytes >= least_part_of_vector && address % bytes == 0;
    const std::uintptr_t vector = address / 16 * 16;
    const bool is_inside = is_vector ? vector + 16 > begin && vector < end : address >= begin && address + bytes <= end;
    if (!is_inside)
      continue;
    if (launch.awaits_predecessor && !machine.current->has_awaited_predecessors)
      fault(site, text("%s %s before it waits for the launches before its own", verb(access), buffer.name));
    return;
  }
  const std::uintptr_t past_window = address - window_begin - machine.window_bytes;
  if (past_window < machine.window_bytes)
    fault(site, text("%s %lu bytes of shared memory, %lu past the end of the block's %lu", verb(access),
                     static_cast<unsigned long>(bytes), static_cast<unsigned long>(past_window),
                     static_cast<unsigned long>(machine.window_bytes)));
  fault(site, text("%s %lu bytes of global memory ", verb(access), static_cast<unsigned long>(bytes)) +
                  place_among_buffers(address, bytes));
}

inline void check_window(Site site, Access access, std::uint64_t address, std::uint64_t bytes) {
  if (address + bytes > machine.window_bytes)
    fault_at(site, access, static_cast<unsigned>(address), bytes,
             text("outside of the block's %lu", static_cast<unsigned long>(machine.window_bytes)));
}

[[noreturn, gnu::noinline]] inline void shared_fault(Block& block, Site site, Access access, unsigned address,
                                                     unsigned bytes) {
  for (unsigned i = address; i < address + bytes; ++i) {
    const ByteState state = block.shadow.state[i];
    if (state != ByteState::written && (access == Access::read || state != ByteState::uninitialised))
      fault_at(site, access, address, bytes, name_of(state));
  }
  fault_at(site, access, address, bytes, "that an asynchronous operation is reading");
}

inline void check_shared_read(Block& block, Site site, unsigned address, unsigned bytes) {
  const ByteState* state = &block.shadow.state[address];
  for (unsigned i = 0; i < bytes; ++i)
    if (state[i] != ByteState::written)
      shared_fault(block, site, Access::read, address, bytes);
}

// And marks them as written by the thread that runs.
inline void check_shared_write(Block& block, Site site, unsigned address, unsigned bytes) {
  Shadow& shadow = block.shadow;
  ByteState* state = &shadow.state[address];
  for (unsigned i = 0; i < bytes; ++i) {
    if (static_cast<unsigned char>(state[i]) & 2)
      shared_fault(block, site, Access::write, address, bytes);
    state[i] = ByteState::written;
  }
  for (unsigned granule = address / 16; granule <= (address + bytes - 1) / 16; ++granule)
    if (shadow.readers[granule])
      shared_fault(block, site, Access::write, address, bytes);
  const Shadow::Writer writer = {machine.fence_clock, static_cast<std::uint32_t>(machine.current->number)};
  for (unsigned word = address / 4; word <= (address + bytes - 1) / 4; ++word) shadow.writer[word] = writer;
}

// Bytes that asynchronous work will write.
inline void begin_flight(Block& block, Site site, unsigned address, unsigned bytes) {
  check_window(site, Access::write, address, bytes);
  Shadow& shadow = block.shadow;
  for (unsigned i = address; i < address + bytes; ++i) {
    if (static_cast<unsigned char>(shadow.state[i]) & 2 || shadow.readers[i / 16])
      shared_fault(block, site, Access::write, address, bytes);
    shadow.state[i] = ByteState::in_flight;
  }
}
// They are there. The asynchronous proxy sees what it has written itself.
inline void end_flight(Block& block, unsigned address, unsigned bytes) {
  for (unsigned i = address; i < address + bytes; ++i) block.shadow.state[i] = ByteState::written;
  for (unsigned word = address / 4; word <= (address + bytes - 1) / 4; ++word) block.shadow.writer[word] = {};
}

// Bytes that asynchronous work will read, for the thread that runs.
inline void begin_reading(Block& block, Site site, unsigned address, unsigned bytes) {
  check_window(site, Access::read, address, bytes);
  check_shared_read(block, site, address, bytes);
  for (unsigned word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
    const Shadow::Writer& writer = block.shadow.writer[word];
    // Not of all blocks of a cluster: those of others are never read.
    if (writer.when && block.fibers[writer.thread].fenced_at <= writer.when &&
        machine.current->fenced_at <= writer.when)
      fault_at(site, Access::read, address, bytes,
               text("asynchronously that thread %u has written with no fence.proxy.async since", writer.thread));
  }
  for (unsigned granule = address / 16; granule <= (address + bytes - 1) / 16; ++granule)
    ++block.shadow.readers[granule];
}
inline void end_reading(Block& block, unsigned address, unsigned bytes) {
  for (unsigned granule = address / 16; granule <= (address + bytes - 1) / 16; ++granule)
    --block.shadow.readers[granule];
}

inline void check_registers(Fiber& fiber, Site site, Access access, std::uintptr_t address, std::uint64_t bytes);

[[gnu::noinline]] inline void check_elsewhere(Site site, Access access, std::uintptr_t address, std::uint64_t bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(address);
  if (access == Access::read && at >= machine.image_begin && at + bytes <= machine.image_end)
    return;  // a constant
  // A kernel that gets its parameters by value: the compiler may copy them by a call.
  const auto* parameters = static_cast<const unsigned char*>(machine.launch->parameters);
  if (access == Access::read && at >= parameters && at + bytes <= parameters + machine.launch->parameter_bytes)
    return;
  check_global(site, access, address, bytes);
}

inline void check(Site site, Access access, std::uintptr_t address, std::uint64_t bytes) {
  Fiber& fiber = *machine.current;
  if (address - stack_begin < stack_bytes) {
    if (access == Access::write && has_products)
      fiber.written.note(address - stack_begin, bytes, stack_bytes);
    if (address < fiber.held_end && address + bytes > fiber.held_begin)
      check_registers(fiber, site, access, address, bytes);
    return;
  }
  const std::uintptr_t offset = address - window_begin;
  if (offset < machine.window_bytes) {
    check_window(site, access, offset, bytes);
    if (access == Access::read)
      check_shared_read(*fiber.block, site, static_cast<unsigned>(offset), static_cast<unsigned>(bytes));
    else
      check_shared_write(*fiber.block, site, static_cast<unsigned>(offset), static_cast<unsigned>(bytes));
    return;
  }
  check_elsewhere(site, access, address, bytes);
}

[[noreturn, gnu::noinline]] inline void misaligned(Site site, Access access, std::uintptr_t address, unsigned bytes) {
  const std::uintptr_t offset = address - window_begin;
  const char* where = address - stack_begin < stack_bytes ? "of its own"
                      : offset < machine.window_bytes     ? "of shared memory"
                                                          : "of global memory";
  fault(site, text("%s %u bytes %s at an address that is not a multiple of %u", verb(access), bytes, where, bytes));
}

// Another block of the cluster, which must still run.
inline Block& block_of_cluster(Site site, unsigned rank, const char* what) {
  if (rank >= machine.blocks.size())
    fault(site, text("%s block %u of a cluster of %zu", what, rank, machine.blocks.size()));
  if (machine.blocks[rank].live == 0)
    fault(site, text("%s block %u of the cluster, which has ended", what, rank));
  return machine.blocks[rank];
}

std::uint64_t load_remote(const void* address, unsigned rank) {
  const Site site = __builtin_return_address(0);
  const auto offset =
      static_cast<std::uint64_t>(static_cast<const unsigned char*>(address) - machine.current->block->window);
  check_window(site, Access::read, offset, 8);
  Block& block = block_of_cluster(site, rank, "reads shared memory of");
  check_shared_read(block, site, static_cast<unsigned>(offset), 8);
  std::uint64_t value;
  std::memcpy(&value, block.window + offset, sizeof value);
  return value;
}

std::uint32_t atomic(void* address, std::uint32_t value, Atomic how, bool is_signed) {
  const Site site = __builtin_return_address(0);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at % 4)
    misaligned(site, Access::write, at, 4);
  check(site, Access::read, at, 4);
  check(site, Access::write, at, 4);
  std::uint32_t old;
  std::memcpy(&old, address, sizeof old);
  std::uint32_t now = old + value;
  if (how != Atomic::add) {
    const bool is_less = is_signed ? static_cast<std::int32_t>(value) < static_cast<std::int32_t>(old) : value < old;
    now = is_less == (how == Atomic::min) ? value : old;
  }
  std::memcpy(address, &now, sizeof now);
  return old;
}

void await_predecessors() { machine.current->has_awaited_predecessors = true; }

void async_proxy_fence() { machine.current->fenced_at = ++machine.fence_clock; }

}  // namespace tilesmith::emulator
