// C = A B of 16 or 8 bits in large tiles, by the products that a warp of the tensor cores has in its registers; sums
// are float32 or int32.
//
// A block computes a tile of C. Tiles of A and B pass through a ring in shared memory, and each warp has a part of 64 x
// 64 of the block's tile: then the tensor cores wait neither for shared memory nor for L2.
//
// Where tiles are few, K is cut into parts, as mma.cu does it, for small products and all that is not aligned.
//
// The translation unit defines the constants in namespace plan, and includes step_products.cuh or
// parts/held_step_products.cuh, before it includes this file.

#include "kernels/mma/finish.cuh"
#include "ptx/grid.cuh"

namespace tilesmith {

extern "C" __global__ void __launch_bounds__(plan::threads, plan::blocks_per_sm)
    mma_large(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  ptx::grid_launch_dependents();

  PartOfOperands operands(p);
  const BlockTile tile = BlockTile::own(p);
  operands.move_to(tile.matrix, p);
  const TileOfA a_tile(operands.a, tile.first_m, p.m, p.a_stride_m, p.a_stride_k);
  const TileOfB b_tile(operands.b, tile.first_n, p.n, p.b_stride_n, p.b_stride_k);

  ptx::grid_dependency_wait();
  StepProducts products(a_tile, b_tile, ptx::shared_address(shared_bytes), operands.k);
  products.run(p.copies_are_whole);

  finish(p, tile, shared_bytes, products.total);
}

}  // namespace tilesmith
