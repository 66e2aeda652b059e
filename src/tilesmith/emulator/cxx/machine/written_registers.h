// Which registers a thread has written since its last wgmma.fence: those of them that are in memory, on its stack.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tilesmith::emulator {

class WrittenRegisters {
  std::vector<bool> is_written_;  // four bytes each
  std::uint64_t begin_ = 0, end_ = 0;

 public:
  // `offset`: in the stack.
  void note(std::uint64_t offset, std::uint64_t bytes, std::uint64_t stack_bytes) {
    if (is_written_.empty())
      is_written_.resize(stack_bytes / 4);
    const std::uint64_t first = offset / 4, last = std::min((offset + bytes - 1) / 4, stack_bytes / 4 - 1);
    for (std::uint64_t i = first; i <= last; ++i) is_written_[i] = true;
    begin_ = end_ == 0 ? first : std::min(begin_, first);
    end_ = std::max(end_, last + 1);
  }

  bool any(std::uint64_t offset, std::uint64_t bytes) const {
    const std::uint64_t first = std::max(offset / 4, begin_), end = std::min((offset + bytes) / 4, end_);
    for (std::uint64_t i = first; i < end; ++i)
      if (is_written_[i])
        return true;
    return false;
  }

  void fence() {
    if (end_ > 0)
      std::fill(is_written_.begin() + static_cast<std::ptrdiff_t>(begin_),
                is_written_.begin() + static_cast<std::ptrdiff_t>(end_), false);
    begin_ = end_ = 0;
  }
};

}  // namespace tilesmith::emulator
