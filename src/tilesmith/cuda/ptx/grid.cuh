// How a grid follows the one before it in the stream. One instruction, one function.
#pragma once

namespace tilesmith::ptx {

// Waits until the grids that this one depends on are done and their results can be seen. Before Hopper they always are.
__device__ __forceinline__ void grid_dependency_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next grid start before this one is done, up to its own wait.
__device__ __forceinline__ void grid_launch_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tilesmith::ptx
