// The ring in shared memory that tiles of A and B pass through.
#pragma once

#include "kernels/mma/operand_tiles.cuh"

namespace tilesmith {

constexpr bool is_held = TileOfA::is_held || TileOfB::is_held;
constexpr int steps_ahead = is_held ? 2 : plan::stages - 1;  // of the copies; registers hold one step
// The stage of the step before the one that is multiplied is free. That of the latter is not, for copies that do not
// wait.
static_assert(steps_ahead < plan::stages + plan::holds_copies);

constexpr int k_round = plan::mma_k * plan::warps_k;  // of K that all warps multiply at once
static_assert(plan::tile_k % k_round == 0);

struct RingStage {
  Element a[TileOfA::elements];
  Element b[TileOfB::elements];
};
struct Shared {
  RingStage ring[plan::stages];
};
static_assert(sizeof(Shared) == plan::shared_bytes);

}  // namespace tilesmith
