// The tiles of A and B in shared memory, and what is multiplied of them.
#pragma once

#include "kernels/mma/arithmetic.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "kernels/mma/results.cuh"

namespace tilesmith {

using plan::Element;
using Own = Arithmetic<Element, Sum>;
using TileOfA = CopiedTile<Element, plan::tile_m, plan::tile_k, 2 * mmas_m, plan::threads, plan::a_along_k,
                           plan::a_copy_bytes, plan::by_matrices, plan::holds_copies>;
using TileOfB = CopiedTile<Element, plan::tile_n, plan::tile_k, mmas_n, plan::threads, plan::b_along_k,
                           plan::b_copy_bytes, plan::by_matrices, plan::holds_copies>;

}  // namespace tilesmith
