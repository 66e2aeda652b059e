// How a kernel is stopped: the first fault is kept, and no thread of the GPU runs on.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

#include "machine/state.h"

namespace tilesmith::emulator {

[[noreturn]] void leave_cluster();

inline std::string text(const char* format, ...) {
  char buffer[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(buffer, sizeof buffer, format, values);
  va_end(values);
  return buffer;
}

// A place in the kernel's code, which Python turns into a file and a line.
inline std::string place(Site site) {
  const auto* at = static_cast<const unsigned char*>(site);
  if (at <= machine.image_begin || at > machine.image_end)
    return "@{0}";
  return text("@{%lx}", static_cast<unsigned long>(at - machine.image_begin - 1));
}

inline std::string name_of(const Fiber& fiber) {
  const Index& block = fiber.block->index;
  return text("block (%u, %u, %u) thread %d", block.x, block.y, block.z, fiber.number);
}

inline void keep_error(const std::string& error) {
  if (machine.error.empty())
    machine.error = error;
}

[[noreturn, gnu::noinline]] inline void fault(const Fiber& who, Site site, const std::string& what) {
  keep_error(name_of(who) + " " + place(site) + ": " + what);
  leave_cluster();
}
[[noreturn]] inline void fault(Site site, const std::string& what) { fault(*machine.current, site, what); }

}  // namespace tilesmith::emulator
