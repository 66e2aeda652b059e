// A crash inside of a kernel becomes a fault: a stack that is full, or an access that no hook saw.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include "machine/faults.h"
#include "machine/scheduler.h"

namespace tilesmith::emulator {

constexpr int caught_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};  // the last two of a trap

struct SignalStack {
  std::vector<unsigned char> memory;
  SignalStack() : memory(64 * 1024) {
    stack_t now = {};
    now.ss_sp = memory.data();
    now.ss_size = memory.size();
    sigaltstack(&now, nullptr);
  }
  ~SignalStack() {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
};

// Replaces the handlers of the process as long as a launch runs.
class SignalHandlers {
  static constexpr int count = sizeof caught_signals / sizeof caught_signals[0];
  static inline struct sigaction previous_[count];

  static void handle(int signal, siginfo_t*, void* data) {
    Fiber* const current = machine.current;
    if (!current || !pthread_equal(current->block->host, pthread_self())) {
      restore();  // it is not ours: it comes again
      return;
    }
    auto& context = static_cast<ucontext_t*>(data)->uc_mcontext;
#if defined(__x86_64__)
    auto& instruction = context.gregs[REG_RIP];
    auto& stack_pointer = context.gregs[REG_RSP];
    constexpr int pushed = 8;  // by the call that this looks like
#else
    auto& instruction = context.pc;
    auto& stack_pointer = context.sp;
    constexpr int pushed = 0;
#endif
    const auto at = static_cast<std::uintptr_t>(instruction);
    keep_error(name_of(*current) + " " + place(reinterpret_cast<Site>(at + 1)) +
               text(": the emulated kernel got signal %d", signal));
    // What is on the stack is lost anyway.
    stack_pointer = static_cast<std::remove_reference_t<decltype(stack_pointer)>>(
        reinterpret_cast<std::uintptr_t>(current->stack) + stack_bytes - 4096 - pushed);
    instruction =
        static_cast<std::remove_reference_t<decltype(instruction)>>(reinterpret_cast<std::uintptr_t>(&leave_cluster));
  }

  static void restore() {
    for (int i = 0; i < count; ++i) sigaction(caught_signals[i], &previous_[i], nullptr);
  }

 public:
  SignalHandlers() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < count; ++i) sigaction(caught_signals[i], &action, &previous_[i]);
  }
  ~SignalHandlers() { restore(); }
};

}  // namespace tilesmith::emulator
