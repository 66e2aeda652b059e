// Switching between stacks: a GPU's thread is a stack of its own on a thread of the operating system.
#pragma once

#include <cstdint>

// Saves what a callee must keep on the stack, keeps the stack's pointer in `saved`, and goes on from `to`.
extern "C" void tilesmith_switch_stack(void** saved, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.hidden tilesmith_switch_stack
.globl tilesmith_switch_stack
tilesmith_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden tilesmith_switch_stack
.globl tilesmith_switch_stack
tilesmith_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the emulator knows x86_64 and aarch64"
#endif

namespace tilesmith::emulator {

// A stack, whose end is `end`, that calls `start` when it is switched to. `start` does not return.
inline void* new_context(unsigned char* end, void (*start)()) {
  auto* top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(end) & ~std::uintptr_t{63});
#if defined(__x86_64__)
  constexpr int saved = 6;
  *--top = nullptr;  // where `start` would return to
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < saved; ++i) *--top = nullptr;
#else
  constexpr int saved = 20, link_register = 11;
  top -= saved;
  for (int i = 0; i < saved; ++i) top[i] = nullptr;
  top[link_register] = reinterpret_cast<void*>(start);
#endif
  return top;
}

}  // namespace tilesmith::emulator
