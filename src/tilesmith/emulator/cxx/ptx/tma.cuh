// The emulator's TMA: see cuda/ptx/tma.cuh.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/shared.cuh"

namespace tilesmith::ptx {

// Holds an emulator::TensorMap.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

template <int rank>
struct Coordinates {
  int at[rank];
};

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) { emulator::check_tensor_map(&map); }

template <int rank>
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Coordinates<rank> c, Barrier& barrier) {
  emulator::tensor_load(to, &map, c.at, rank, &barrier, 0);
}
template <int rank>
__device__ __forceinline__ void tma_load_multicast(void* to, const TensorMap& map, Coordinates<rank> c,
                                                   Barrier& barrier, unsigned short blocks) {
  emulator::tensor_load(to, &map, c.at, rank, &barrier, blocks);
}
template <int rank>
__device__ __forceinline__ void tma_store(const TensorMap& map, Coordinates<rank> c, unsigned from) {
  emulator::tensor_store(&map, c.at, rank, from);
}

__device__ __forceinline__ void tma_store_commit() { emulator::tensor_store_commit(); }
template <int groups>
__device__ __forceinline__ void tma_store_wait_read() {
  emulator::tensor_store_wait_read(groups);
}
__device__ __forceinline__ void async_proxy_fence() { emulator::async_proxy_fence(); }

}  // namespace tilesmith::ptx
