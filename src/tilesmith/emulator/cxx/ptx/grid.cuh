// The emulator's grids run one after the other: see cuda/ptx/grid.cuh.
#pragma once

namespace tilesmith::ptx {

__device__ __forceinline__ void grid_dependency_wait() { emulator::await_predecessors(); }
__device__ __forceinline__ void grid_launch_dependents() {}

}  // namespace tilesmith::ptx
