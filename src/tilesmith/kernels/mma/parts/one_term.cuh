// The products of a block's tiles of operands that are one term each. They lose nothing to what the tensor cores cut
// off that these terms have not lost already, so all of K is one sum.
#pragma once

#include "kernels/mma/block_tile.cuh"
#include "kernels/mma/step_products.cuh"

namespace tilesmith {

static_assert(plan::terms == 1 && plan::sum_k == 0 && plan::scale == Scale::factors);

class Products : StepProducts {
 public:
  using StepProducts::total;

  __device__ __forceinline__ Products(const Parameters& p, const Element* a, const Element* b, const BlockTile& tile,
                                      unsigned ring, int k, const Sums&)
      : StepProducts(TileOfA(a, tile.first_m, p.m, p.a_stride_m, p.a_stride_k),
                     TileOfB(b, tile.first_n, p.n, p.b_stride_n, p.b_stride_k), ring, k) {}

  // Terms end where a tile does.
  __device__ __forceinline__ void run() { StepProducts::run(true); }
};

// Infinities and NaNs are out of its range.
__device__ __forceinline__ void find_special(Sums&, const Parameters&, const Element*, const Element*, const BlockTile&,
                                             unsigned, int) {}

}  // namespace tilesmith
