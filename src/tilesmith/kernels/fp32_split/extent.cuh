// Which part of K has values other than zero. The rest need not be multiplied: a product of triangles is a sixth of the
// work.
#pragma once

namespace tilesmith {

struct Extent {
  int first, end;  // along K

  static __device__ __forceinline__ Extent none() { return {1 << 30, 0}; }

  __device__ __forceinline__ void add(const Extent& other) {
    first = min(first, other.first);
    end = max(end, other.end);
  }

  // Adds these values, if one of them is not zero.
  template <typename Values>
  __device__ __forceinline__ void note(const Values& x, int k) {
    bool any = false;
    for (float value : x.element) any |= value != 0.0f;
    if (any)
      add({k, k + 1});
  }

  // Adds those of the other lanes of the warp.
  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      add({__shfl_xor_sync(0xffffffffu, first, distance), __shfl_xor_sync(0xffffffffu, end, distance)});
  }
};

}  // namespace tilesmith
