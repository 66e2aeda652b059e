// A launch: clusters one after the other, their blocks at the same time, each on a thread of the operating system,
// whose thread-local memory is its shared memory.
#pragma once

#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

#include "machine/barriers.h"
#include "machine/collectives.h"
#include "machine/copies.h"
#include "machine/deadlock.h"
#include "machine/products.h"
#include "machine/signals.h"
#include "machine/tensor_copies.h"

namespace tilesmith::emulator {

// Where the kernel's library lies, and its thread-local memory on the thread that asks.
inline unsigned char* find_window() {
  unsigned char* const own = tilesmith_shared_bytes();  // it is there from now on
  struct Found {
    unsigned char* window;
    std::uintptr_t code;
  } found = {own, reinterpret_cast<std::uintptr_t>(&tilesmith_launch)};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        Found& found = *static_cast<Found*>(data);
        std::uintptr_t end = 0;
        const ElfW(Phdr)* local = nullptr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & header = info->dlpi_phdr[i];
          if (header.p_type == PT_LOAD)
            end = std::max(end, static_cast<std::uintptr_t>(info->dlpi_addr + header.p_vaddr + header.p_memsz));
          if (header.p_type == PT_TLS)
            local = &header;
        }
        if (found.code < info->dlpi_addr || found.code >= end)
          return 0;
        machine.image_begin = reinterpret_cast<const unsigned char*>(info->dlpi_addr);
        machine.image_end = reinterpret_cast<const unsigned char*>(end);
        machine.window_bytes = local->p_memsz;
        found.window = static_cast<unsigned char*>(info->dlpi_tls_data);
        return 1;
      },
      &found);
  return found.window;
}

// The stacks of all threads of a cluster, each with a gap before it that may not be touched.
class Stacks {
  static constexpr std::size_t gap = 64 * 1024;  // the largest page
  unsigned char* memory_;
  std::size_t bytes_;

 public:
  explicit Stacks(std::size_t count) : bytes_(count * (gap + stack_bytes)) {
    memory_ = static_cast<unsigned char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t i = 0; i < count; ++i) mprotect((*this)[i] - gap, gap, PROT_NONE);
  }
  ~Stacks() { munmap(memory_, bytes_); }
  Stacks(const Stacks&) = delete;

  unsigned char* operator[](std::size_t number) const { return memory_ + number * (gap + stack_bytes) + gap; }
};

// A thread of the GPU has reached the end of the kernel.
inline void end_fiber(Fiber& self) {
  Block& block = *self.block;
  deliver_before(self, self.copy_groups + 1);
  self.has_ended = true;
  --machine.live;
  --block.live;
  leave_warp(*self.warp);
  leave_barriers(block);
  Warpgroup& group = warpgroup_of(self);
  if (--group.live == 0 && !group.products.empty())
    fault(group.products.front().site, "a product that is under way when its warpgroup ends");
  if (machine.live > 0 && machine.cluster_arrived >= machine.live)
    finish_cluster_barrier();
  if (block.live > 0)
    return;
  for (const auto& operation : machine.operations)
    if (operation->touches(block))
      fault(*operation->issuer, operation->site, "a copy of shared memory that is under way when the block ends");
}

inline void run_fiber() {
  tilesmith_kernel(machine.launch->parameters);
  end_fiber(*machine.current);
  void* never_used;
  switch_to(&never_used, pick());
}

inline void reset(Block& block, std::uint64_t linear_block, const Stacks& stacks) {
  const Launch& launch = *machine.launch;
  block.index = {static_cast<unsigned>(linear_block % launch.grid[0]),
                 static_cast<unsigned>(linear_block / launch.grid[0] % launch.grid[1]),
                 static_cast<unsigned>(linear_block / launch.grid[0] / launch.grid[1])};
  block.shadow.clear(machine.window_bytes);
  const int threads = static_cast<int>(launch.threads);
  block.live = threads;
  block.phases.clear();
  block.runnable.clear();
  block.warps.assign(static_cast<std::size_t>(threads / lanes), {});
  block.warpgroups.assign(static_cast<std::size_t>((threads + warpgroup_threads - 1) / warpgroup_threads), {});
  for (NamedBarrier& barrier : block.barriers) {
    barrier = {};
    barrier.arrived_of_warp.assign(block.warps.size(), 0);
  }
  block.fibers.resize(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = block.fibers[static_cast<std::size_t>(i)];
    fiber = {};
    fiber.block = &block;
    fiber.number = i;
    fiber.warp = &block.warps[static_cast<std::size_t>(i / lanes)];
    fiber.stack = stacks[static_cast<std::size_t>(block.rank * threads + i)];
    fiber.stack_pointer = new_context(fiber.stack + stack_bytes, run_fiber);
    block.runnable.push_back(&fiber);
  }
  for (std::size_t i = 0; i < block.warps.size(); ++i) {
    block.warps[i].first = &block.fibers[i * lanes];
    block.warps[i].live = lanes;
  }
  for (std::size_t i = 0; i < block.warpgroups.size(); ++i) {
    Warpgroup& group = block.warpgroups[i];
    group.block = &block;
    group.first = &block.fibers[i * warpgroup_threads];
    group.threads = group.live = std::min(warpgroup_threads, threads - static_cast<int>(i) * warpgroup_threads);
  }
}

// Runs threads of one block on the thread of the operating system that is its own, until the grid's turn comes.
inline void run_on_host(Block& own) {
  while (machine.next) {
    tilesmith_switch_stack(&own.host_stack_pointer, machine.next->stack_pointer);
    while (machine.next_block != &own) {
      sem_post(&machine.next_block->token);
      sem_wait(&own.token);
      if (machine.is_stopping)
        return;
    }
  }
}

inline void check_end_of_cluster() {
  while (!machine.operations.empty()) advance_operation();
  for (const Block& block : machine.blocks)
    for (const auto& [address, phase] : block.phases)
      if (phase.missing_bytes != 0)
        keep_error(text("block (%u, %u, %u) ", block.index.x, block.index.y, block.index.z) + place(phase.site) +
                   text(": at the end of the block, the mbarrier at %u expects %ld bytes more than came", address,
                        static_cast<long>(phase.missing_bytes)));
}

inline void run_clusters() {
  const Launch& launch = *machine.launch;
  const Stacks stacks(launch.threads * launch.cluster);
  const std::uint64_t blocks = std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  for (std::uint64_t first = 0; first < blocks && machine.error.empty(); first += launch.cluster) {
    machine.live = static_cast<int>(launch.threads * launch.cluster);
    machine.cluster_arrived = 0;
    machine.cluster_waiting.clear();
    machine.operations.clear();
    machine.fence_clock = 1;
    for (Block& block : machine.blocks) reset(block, first + static_cast<std::uint64_t>(block.rank), stacks);
    start(taken_from(machine.blocks[0]));
    run_on_host(machine.blocks[0]);
    if (machine.error.empty())
      check_end_of_cluster();
  }
}

inline void* serve(void* data) {
  Block& own = *static_cast<Block*>(data);
  const SignalStack signal_stack;
  own.window = find_window();
  own.host = pthread_self();
  sem_post(&machine.ready);
  sem_wait(&own.token);
  if (own.rank == 0) {
    run_clusters();
    machine.is_stopping = true;
    for (Block& block : machine.blocks)
      if (block.rank > 0)
        sem_post(&block.token);
  } else if (!machine.is_stopping) {
    run_on_host(own);
  }
  return nullptr;
}

inline bool are_counts_right(const Launch& launch) {
  return launch.threads && launch.threads % lanes == 0 && launch.cluster && launch.grid[0] % launch.cluster == 0;
}

}  // namespace tilesmith::emulator

extern "C" int tilesmith_launch(const tilesmith::emulator::Launch* launch) {
  using namespace tilesmith::emulator;
  machine.launch = launch;
  machine.error.clear();
  machine.is_stopping = false;
  has_products = launch->has_products != 0;
  machine.random_state = launch->seed * 2 + 0x9e3779b97f4a7c15ull;
  grid_size = {launch->grid[0], launch->grid[1], launch->grid[2]};
  if (!are_counts_right(*launch)) {
    keep_error("the launch has no whole warps, or no whole clusters");
  } else {
    const SignalHandlers handlers;
    machine.blocks.clear();
    sem_init(&machine.ready, 0, 0);
    for (std::uint32_t rank = 0; rank < launch->cluster; ++rank) {
      Block& block = machine.blocks.emplace_back();
      block.rank = static_cast<int>(rank);
      sem_init(&block.token, 0, 0);
    }
    std::vector<pthread_t> threads(launch->cluster);
    for (std::uint32_t rank = 0; rank < launch->cluster; ++rank) {
      pthread_create(&threads[rank], nullptr, serve, &machine.blocks[rank]);
      sem_wait(&machine.ready);  // one at a time
    }
    sem_post(&machine.blocks[0].token);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    machine.blocks.clear();
    machine.operations.clear();
  }
  std::snprintf(launch->error, launch->error_bytes, "%s", machine.error.c_str());
  return machine.error.empty() ? 0 : 1;
}
