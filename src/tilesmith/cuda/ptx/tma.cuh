// The bulk tensor TMA (TMA): boxes of a tensor in global memory to and from shared
// memory. One instruction, one function.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/shared.cuh"

namespace tilesmith::ptx {

// A tensor's address, sizes, strides, box and swizzle, encoded by the driver.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// Where a box starts, the contiguous dimension first.
template <int rank>
struct Coordinates {
  int at[rank];
};

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts the copy of a box to shared memory; its bytes arrive at the barrier. What is outside
// of the tensor arrives as zeros.
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Coordinates<2> c, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1])
      : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Coordinates<3> c, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2])
      : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Coordinates<5> c, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4])
      : "memory");
}

// The same, to the same place in every block of the cluster whose bit is set in `blocks`, each
// of which gets the bytes counted at its own barrier.
__device__ __forceinline__ void tma_load_multicast(void* to, const TensorMap& map, Coordinates<2> c, Barrier& barrier,
                                                   unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(void* to, const TensorMap& map, Coordinates<3> c, Barrier& barrier,
                                                   unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(void* to, const TensorMap& map, Coordinates<5> c, Barrier& barrier,
                                                   unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4]),
      "h"(blocks)
      : "memory");
}

// Starts the copy of a box from shared memory. What is outside of the tensor is not written.
__device__ __forceinline__ void tma_store(const TensorMap& map, Coordinates<2> c, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(c.at[0]), "r"(c.at[1])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, Coordinates<3> c, unsigned from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(from), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2])
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, Coordinates<5> c, unsigned from) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4])
      : "memory");
}

// Closes a group of this thread's stores.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last `groups` groups have read their shared memory.
template <int groups>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

// Orders this thread's writes to shared memory before later accesses by TMA.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace tilesmith::ptx
