// The tiles of B go through the ring, as those of A do.
#pragma once

#include "kernels/hopper/common.cuh"

namespace tilesmith {

static_assert(!plan::stationary_b);

using Tiles = Walk<plan::Schedule, Share, several>;

constexpr int b_stages = plan::stages;

// Where the tile of B is that belongs to a stage.
__device__ __forceinline__ int b_stage(int stage) { return stage; }

}  // namespace tilesmith
