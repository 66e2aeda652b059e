// Who runs next. Threads run until they wait; then another one goes on, in turn or, with a seed, any one. Asynchronous
// work is done as late as possible or, with a seed, at any time.
#pragma once

#include "machine/context.h"
#include "machine/faults.h"
#include "machine/state.h"

namespace tilesmith::emulator {

extern std::uintptr_t stack_begin;  // of the thread that runs
extern std::uintptr_t window_begin;
extern bool has_products;  // whether the kernel uses tensor-core products
constexpr std::uintptr_t stack_bytes = 128 * 1024;

void advance_products_at_random();
std::string deadlock();

// From now on a thread of the GPU runs, or if there is none the grid.
inline void start(Fiber* next) {
  machine.next = machine.current = next;
  machine.next_block = next ? next->block : &machine.blocks[0];
  if (!next)
    return;
  thread_index.x = static_cast<unsigned>(next->number);
  block_index = next->block->index;
  shared_window = next->block->window;
  window_begin = reinterpret_cast<std::uintptr_t>(next->block->window);
  stack_begin = reinterpret_cast<std::uintptr_t>(next->stack);
}

// A thread of another block, and the grid, are switched to by way of the block's host: see grid.h.
inline void switch_to(void** saved, Fiber* next) {
  const Block& here = *machine.current->block;
  start(next);
  tilesmith_switch_stack(saved, next && next->block == &here ? next->stack_pointer : here.host_stack_pointer);
}

[[noreturn]] inline void leave_cluster() {
  void* never_used;
  switch_to(&never_used, nullptr);
  __builtin_unreachable();
}

inline void advance_operation() {
  const std::size_t which = machine.launch->is_random ? random_number() % machine.operations.size() : 0;
  if (machine.operations[which]->advance())
    machine.operations.erase(machine.operations.begin() + static_cast<std::ptrdiff_t>(which));
}

inline Fiber* taken_from(Block& block) {
  auto& runnable = block.runnable;
  if (machine.launch->is_random)
    std::swap(runnable.front(), runnable[random_number() % runnable.size()]);
  Fiber* next = runnable.front();
  runnable.pop_front();
  return next;
}

// None if all have ended.
inline Fiber* pick() {
  for (;;) {
    if (machine.launch->is_random) {
      if (!machine.operations.empty() && one_in(8))
        advance_operation();
      if (one_in(16))
        advance_products_at_random();
    }
    const int count = static_cast<int>(machine.blocks.size());
    // Another block means another thread of the operating system: that takes long.
    const int first = machine.current->block->rank + (one_in(16) ? 1 : 0);
    for (int i = 0; i < count; ++i) {
      Block& block = machine.blocks[static_cast<std::size_t>((first + i) % count)];
      if (!block.runnable.empty())
        return taken_from(block);
    }
    if (!machine.operations.empty()) {
      advance_operation();
      continue;
    }
    if (machine.live > 0) {
      keep_error(deadlock());
      leave_cluster();
    }
    return nullptr;
  }
}

inline void make_runnable(Fiber* fiber) {
  fiber->wait.kind = Wait::Kind::nothing;
  fiber->block->runnable.push_back(fiber);
}
inline void make_all_runnable(std::vector<Fiber*>& waiting) {
  for (Fiber* fiber : waiting) make_runnable(fiber);
  waiting.clear();
}

inline void run_others() {
  Fiber* self = machine.current;
  Fiber* next = pick();
  if (next != self)
    switch_to(&self->stack_pointer, next);
}

inline void wait_for(const Wait& what) {
  machine.current->wait = what;
  run_others();
}

// Lets others go first, if the order is random.
inline void maybe_yield() {
  if (!one_in(2))
    return;
  make_runnable(machine.current);
  run_others();
}

}  // namespace tilesmith::emulator
