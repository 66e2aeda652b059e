// Barriers of blocks, parts of blocks and clusters; mbarriers.
#pragma once

#include "machine/memory.h"
#include "machine/scheduler.h"

namespace tilesmith::emulator {

// All are there: whole warps, or else they have diverged.
inline void finish_barrier(Block& block, NamedBarrier& barrier, int id, Site site) {
  for (std::size_t w = 0; w < block.warps.size(); ++w)
    if (barrier.arrived_of_warp[w] % lanes != 0 && barrier.arrived_of_warp[w] < block.warps[w].live)
      fault(site, text("barrier %d is complete with %d of the %d threads of warp %zu: its lanes have diverged", id,
                       barrier.arrived_of_warp[w], block.warps[w].live, w));
  barrier.arrived = 0;
  barrier.threads = 0;
  std::fill(barrier.arrived_of_warp.begin(), barrier.arrived_of_warp.end(), 0);
  make_all_runnable(barrier.waiting);
}

// `threads`: 0 for all that have not ended.
inline void arrive_at(int id, int threads, bool waits, Site site) {
  Fiber& self = *machine.current;
  Block& block = *self.block;
  if (id < 0 || id > 15)
    fault(site, text("there is no barrier %d", id));
  if (threads < 0 || threads % lanes)
    fault(site, text("barrier %d cannot be for %d threads, which are not whole warps", id, threads));
  NamedBarrier& barrier = block.barriers[id];
  if (barrier.arrived && barrier.threads != threads)
    fault(site, text("barrier %d is for %d threads here, and for %d where others are", id, threads, barrier.threads));
  barrier.threads = threads;
  ++barrier.arrived;
  ++barrier.arrived_of_warp[static_cast<std::size_t>(self.number / lanes)];
  if (barrier.arrived >= (threads ? threads : block.live)) {
    finish_barrier(block, barrier, id, site);
    if (waits)
      maybe_yield();
    return;
  }
  if (waits) {
    barrier.waiting.push_back(&self);
    wait_for({Wait::Kind::barrier, site, id, nullptr, 0});
  }
}

void named_barrier(int id, int threads, bool waits) { arrive_at(id, threads, waits, __builtin_return_address(0)); }
void block_barrier() { arrive_at(0, 0, true, __builtin_return_address(0)); }

// Those who have left the kernel need not come to the barrier of a block.
inline void leave_barriers(Block& block) {
  NamedBarrier& barrier = block.barriers[0];
  if (barrier.arrived && barrier.threads == 0 && barrier.arrived >= block.live)
    finish_barrier(block, barrier, 0, nullptr);
}

inline void finish_cluster_barrier() {
  machine.cluster_arrived = 0;
  for (Block& block : machine.blocks)
    for (Fiber& fiber : block.fibers) fiber.has_left_cluster_barrier = true;
  make_all_runnable(machine.cluster_waiting);
}

void cluster_arrive() {
  Fiber& self = *machine.current;
  self.has_left_cluster_barrier = false;
  if (++machine.cluster_arrived >= machine.live)
    finish_cluster_barrier();
}
void cluster_wait() {
  Fiber& self = *machine.current;
  if (self.has_left_cluster_barrier)
    return maybe_yield();
  machine.cluster_waiting.push_back(&self);
  wait_for({Wait::Kind::cluster, __builtin_return_address(0), 0, nullptr, 0});
}

inline unsigned address_of(Block& block, const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - block.window);
}

inline Phase& phase_at(Block& block, unsigned address, Site site) {
  const auto found = block.phases.find(address);
  if (found == block.phases.end())
    fault(site, text("there is no mbarrier at %u in shared memory", address));
  return found->second;
}

inline void complete_if_due(Phase& phase) {
  if (phase.missing_arrivals > 0 || phase.missing_bytes != 0)
    return;
  phase.missing_arrivals = phase.expected_arrivals;
  phase.parity ^= 1;
  make_all_runnable(phase.waiting);
}

void phase_init(const void* barrier, int arrivals) {
  const Site site = __builtin_return_address(0);
  Block& block = *machine.current->block;
  const unsigned address = address_of(block, barrier);
  check_window(site, Access::write, address, 8);
  if (address % 8)
    misaligned(site, Access::write, window_begin + address, 8);
  if (arrivals < 1)
    fault(site, text("an mbarrier for %d arrivals", arrivals));
  for (unsigned i = address; i < address + 8; ++i) {
    if (static_cast<unsigned char>(block.shadow.state[i]) & 2)
      shared_fault(block, site, Access::write, address, 8);
    block.shadow.state[i] = ByteState::barrier;
  }
  block.phases[address] = {address, arrivals, arrivals, 0, 0, false, site, {}};
}

void phase_init_fence() {
  for (auto& [address, phase] : machine.current->block->phases) phase.is_fenced = true;
}

inline void arrive_at(Block& block, unsigned address, unsigned expected_bytes, Site site) {
  Phase& phase = phase_at(block, address, site);
  if (phase.missing_arrivals == 0)
    fault(site, text("arrives at the mbarrier at %u, which has all its arrivals", address));
  phase.site = site;
  phase.missing_bytes += expected_bytes;
  --phase.missing_arrivals;
  complete_if_due(phase);
}

void phase_arrive(const void* barrier, unsigned expected_bytes) {
  Block& block = *machine.current->block;
  arrive_at(block, address_of(block, barrier), expected_bytes, __builtin_return_address(0));
  maybe_yield();
}

void phase_arrive_remote(const void* barrier, unsigned rank) {
  const Site site = __builtin_return_address(0);
  arrive_at(block_of_cluster(site, rank, "arrives at an mbarrier of"), address_of(*machine.current->block, barrier), 0,
            site);
  maybe_yield();
}

void phase_wait(const void* barrier, unsigned parity) {
  const Site site = __builtin_return_address(0);
  Fiber& self = *machine.current;
  Phase& phase = phase_at(*self.block, address_of(*self.block, barrier), site);
  if (phase.parity != (parity & 1))
    return maybe_yield();
  phase.waiting.push_back(&self);
  wait_for({Wait::Kind::phase, site, 0, &phase, parity & 1});
}

}  // namespace tilesmith::emulator
