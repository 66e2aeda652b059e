// The tiles of a block that keeps to its columns.
#pragma once

#include "scheduler.cuh"

namespace tilesmith {

// There is one matrix, and its tiles go row by row through one column group after the other. The grid has whole rows of
// a group, so a block stays in its column of each.
template <typename Schedule, typename Share>
class ColumnWalk {
  const Schedule& schedule_;
  const int step_;
  int index_;
  int rows_;  // of a step
  TileCoordinate tile_;

 public:
  __device__ __forceinline__ ColumnWalk(const Schedule& schedule, const Share& share)
      : schedule_(schedule), step_(share.step()), index_(share.first()) {
    rows_ = step_ / schedule.column_group;
    tile_.m = index_ / schedule.column_group;
    tile_.n = index_ - tile_.m * schedule.column_group;
  }

  __device__ __forceinline__ bool more() const {
    return index_ < schedule_.tiles_m * schedule_.tiles_n * schedule_.split_k * schedule_.batches;
  }
  __device__ __forceinline__ Work work() const { return {tile_, 0, 0, 0, schedule_.k_steps}; }
  __device__ __forceinline__ Work urgent_work() const { return work(); }
  __device__ __forceinline__ void advance() {
    index_ += step_;
    tile_.m += rows_;
    for (; tile_.m >= schedule_.tiles_m; tile_.m -= schedule_.tiles_m) tile_.n += schedule_.column_group;
  }
};

}  // namespace tilesmith
