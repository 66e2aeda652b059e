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

#define TILESMITH_HOOK(name, bytes, access)                                                                            \
  extern "C" void __tsan_##name(void* address) {                                                                       \
    const auto at = reinterpret_cast<std::uintptr_t>(address);                                                         \
    if (at % alignment_of(bytes))                                                                                      \
      tilesmith::emulator::misaligned(__builtin_return_address(0), access, at, bytes);                                 \
    tilesmith::emulator::check(__builtin_return_address(0), access, at, bytes);                                        \
  }                                                                                                                    \
  extern "C" void __tsan_unaligned_##name(void* address) {                                                             \
    tilesmith::emulator::check(__builtin_return_address(0), access, reinterpret_cast<std::uintptr_t>(address), bytes); \
  }
TILESMITH_HOOK(read1, 1, Access::read)
TILESMITH_HOOK(read2, 2, Access::read)
TILESMITH_HOOK(read4, 4, Access::read)
TILESMITH_HOOK(read8, 8, Access::read)
TILESMITH_HOOK(read16, 16, Access::read)
TILESMITH_HOOK(write1, 1, Access::write)
TILESMITH_HOOK(write2, 2, Access::write)
TILESMITH_HOOK(write4, 4, Access::write)
TILESMITH_HOOK(write8, 8, Access::write)
TILESMITH_HOOK(write16, 16, Access::write)

extern "C" void __tsan_read_range(void* address, unsigned long bytes) {
  tilesmith::emulator::check(__builtin_return_address(0), Access::read, reinterpret_cast<std::uintptr_t>(address),
                             bytes);
}
extern "C" void __tsan_write_range(void* address, unsigned long bytes) {
  tilesmith::emulator::check(__builtin_return_address(0), Access::write, reinterpret_cast<std::uintptr_t>(address),
                             bytes);
}
extern "C" void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  const void* site = __builtin_return_address(0);
  tilesmith::emulator::check(site, Access::read, reinterpret_cast<std::uintptr_t>(from), bytes);
  tilesmith::emulator::check(site, Access::write, reinterpret_cast<std::uintptr_t>(to), bytes);
  return std::memmove(to, from, bytes);
}
extern "C" void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  return __tsan_memcpy(to, from, bytes);
}
extern "C" void* __tsan_memset(void* to, int value, unsigned long bytes) {
  tilesmith::emulator::check(__builtin_return_address(0), Access::write, reinterpret_cast<std::uintptr_t>(to), bytes);
  return std::memset(to, value, bytes);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
