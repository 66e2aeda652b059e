// What the compiler calls before every load and store of a kernel: the hooks of its thread sanitizer, whose own
// run-time library is not there.
#pragma once

#include "machine/memory.h"

using tilesmith::emulator::Access;

// What a load or a store of so many bytes must be a multiple of. A structure of 16 bytes may have less, and on aarch64
// it is moved as a whole.
constexpr unsigned alignment_of(unsigned bytes) {
#if defined(__aarch64__)
  return bytes == 16 ? 8 : bytes;
#else
  return bytes;
#endif
}

inline void check(const void* site, Access access, const void* address, unsigned long bytes) {
  tilesmith::emulator::check(site, access, reinterpret_cast<std::uintptr_t>(address), bytes);
}

#define TILESMITH_HOOK(name, bytes, access)                                            \
  extern "C" void __tsan_##name##bytes(void* address) {                                \
    const auto at = reinterpret_cast<std::uintptr_t>(address);                         \
    if (at % alignment_of(bytes))                                                      \
      tilesmith::emulator::misaligned(__builtin_return_address(0), access, at, bytes); \
    check(__builtin_return_address(0), access, address, bytes);                        \
  }                                                                                    \
  extern "C" void __tsan_unaligned_##name##bytes(void* address) {                      \
    check(__builtin_return_address(0), access, address, bytes);                        \
  }
#define TILESMITH_HOOKS(bytes)              \
  TILESMITH_HOOK(read, bytes, Access::read) \
  TILESMITH_HOOK(write, bytes, Access::write)
TILESMITH_HOOKS(1)
TILESMITH_HOOKS(2)
TILESMITH_HOOKS(4)
TILESMITH_HOOKS(8)
TILESMITH_HOOKS(16)

extern "C" void __tsan_read_range(void* address, unsigned long bytes) {
  check(__builtin_return_address(0), Access::read, address, bytes);
}
extern "C" void __tsan_write_range(void* address, unsigned long bytes) {
  check(__builtin_return_address(0), Access::write, address, bytes);
}
extern "C" void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  check(__builtin_return_address(0), Access::read, from, bytes);
  check(__builtin_return_address(0), Access::write, to, bytes);
  return std::memmove(to, from, bytes);
}
extern "C" void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  return __tsan_memcpy(to, from, bytes);
}
extern "C" void* __tsan_memset(void* to, int value, unsigned long bytes) {
  check(__builtin_return_address(0), Access::write, to, bytes);
  return std::memset(to, value, bytes);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
