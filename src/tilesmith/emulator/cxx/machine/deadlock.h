// What every warp waits for, when no thread can run.
#pragma once

#include "machine/collectives.h"

namespace tilesmith::emulator {

inline std::string waits_for(const Fiber& fiber) {
  const Wait& wait = fiber.wait;
  const Block& block = *fiber.block;
  switch (wait.kind) {
    case Wait::Kind::nothing:
      return "nothing";
    case Wait::Kind::warp:
      return text("%d of %d lanes are at %s", fiber.warp->arrived, fiber.warp->live, fiber.warp->what->name);
    case Wait::Kind::warpgroup:
      return "the other threads of the warpgroup, to wait for products";
    case Wait::Kind::barrier: {
      const NamedBarrier& barrier = block.barriers[wait.barrier];
      return text("barrier %d, where %d of %d threads are", wait.barrier, barrier.arrived,
                  barrier.threads ? barrier.threads : block.live);
    }
    case Wait::Kind::phase: {
      const Phase& phase = *wait.phase;
      const long bytes = static_cast<long>(phase.missing_bytes);
      return text("the mbarrier at %u, parity %u: %d of %d arrivals", phase.address, wait.parity,
                  phase.missing_arrivals, phase.expected_arrivals) +
             (bytes < 0 ? text(" are missing, and %ld bytes came that it did not expect", -bytes)
                        : text(" and %ld bytes are missing", bytes));
    }
    case Wait::Kind::cluster:
      return text("the cluster's barrier, where %d of %d threads are", machine.cluster_arrived, machine.live);
  }
  return {};
}

inline std::string deadlock() {
  std::string all = "deadlock: no thread can run.";
  for (const Block& block : machine.blocks) {
    std::string previous;
    int first = 0;
    const auto end_range = [&](int end) {
      if (!previous.empty())
        all += text("\n  block (%u, %u, %u) threads %d-%d: ", block.index.x, block.index.y, block.index.z, first,
                    end - 1) +
               previous;
    };
    for (const Fiber& fiber : block.fibers) {
      const std::string now = fiber.has_ended ? "" : waits_for(fiber) + " " + place(fiber.wait.site);
      if (now != previous) {
        end_range(fiber.number);
        previous = now;
        first = fiber.number;
      }
    }
    end_range(static_cast<int>(block.fibers.size()));
  }
  return all;
}

}  // namespace tilesmith::emulator
