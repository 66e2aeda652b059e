// A block keeps to its columns, and loads their tile of B once: where K is one step, which all tiles of a column share.
#pragma once

#include "column_walk.cuh"
#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(plan::stationary_b);

using Tiles = ColumnWalk<plan::Schedule, Share>;

constexpr int b_stages = 1;

// Where the tile of B is that belongs to a stage.
__device__ __forceinline__ int b_stage(int) { return 0; }

}  // namespace tilesmith
