// The producer: has the copy engine fill the ring.
#pragma once

#include "batch.cuh"
#include "kernels/sm90/types.cuh"
#include "ptx/barrier.cuh"
#include "scheduler.cuh"

namespace tilesmith {

// Loads for every step of a tile along K the planes of A, the last one first, each together with one of B; or, where
// one of them is a single plane, that together with the last one of the other.
template <int planes>
__device__ __forceinline__ void load_planes(const Parameters& p, Shared& shared, Share share,
                                            const Schedule::Work& work, int first_plane, bool load_b,
                                            Ring::Position& at, Ring::Position& last) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  const BatchIndex a_batch = batch * p.a_moves, b_batch = batch * p.b_moves;
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k)
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
      const bool with_a = plan::a_planes > 1 || plane == 0;
      const bool with_b = load_b && (plan::b_planes > 1 || plane == 0);
      const int from_end = planes - 1 - plane;
      const int a_k = (first_plane + (plan::a_planes > 1 ? from_end : 0)) * p.plane_depth + k * tile_k;
      const int b_k = (first_plane + (plan::a_planes > 1 ? plane : from_end)) * p.plane_depth + k * tile_k;
      shared.ring.acquire(at, (with_a ? ATile::bytes : 0) + (with_b ? BTile::bytes : 0));
      ptx::Barrier& full = shared.ring.full[at.stage];
      if (with_a)
        ATile::load<rank>(shared.a[at.stage], p.a, first_m, a_k, a_batch, full, 0, 1);
      if (with_b)
        BTile::load<rank>(shared.b[plan::b_stays ? plane : at.stage], p.b, first_n, b_k, b_batch, full, share.place,
                          whole_cluster);
      last = at;
      at.advance();
    }
}

__device__ __forceinline__ void produce(const Parameters& p, Shared& shared, Share share, bool special) {
  Ring::Position at, last;
  int columns = -1;  // whose tile of B stays
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = shared.without_zeros(tiles.work());
    const bool load_b = !plan::b_stays || work.tile.n != columns;
    if (plan::b_stays && load_b && columns >= 0)
      shared.ring.wait_empty(last);  // then nobody needs the old one
    columns = work.tile.n;
    if (special)
      load_planes<1>(p, shared, share, work, plan::planes, load_b, at, last);
    load_planes<plan::planes>(p, shared, share, work, 0, load_b, at, last);
  }
}

// The same where A is raw: every stage has A and the planes of B that it is multiplied with, if any.
template <int planes>
__device__ __forceinline__ void load_raw(const Parameters& p, Shared& shared, Share share, const Schedule::Work& work,
                                         int first_plane, Ring::Position& at) {
  constexpr unsigned short whole_cluster = (1 << plan::cluster) - 1;
  const int first_m = share.first_m(work.tile), first_n = share.first_n(work.tile);
  const BatchIndex batch = BatchIndex::of<plan::batch_rank>(work.batch, p.batch_size);
  for (int k = work.first_k; k < work.first_k + work.k_steps; ++k) {
    shared.ring.acquire(at, RawATile::bytes + planes * BTile::bytes);
    ptx::Barrier& full = shared.ring.full[at.stage];
    RawATile::load<rank>(shared.a[at.stage], p.a, first_m, k * tile_k, batch * p.a_moves, full);
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
      BTile::load<rank>(shared.b[at.stage] + plane * BTile::bytes, p.b, first_n,
                        (first_plane + plane) * p.plane_depth + k * tile_k, batch * p.b_moves, full, share.place,
                        whole_cluster);
    at.advance();
  }
}

__device__ __forceinline__ void produce_raw(const Parameters& p, Shared& shared, Share share, bool only_counts,
                                            bool special) {
  Ring::Position at;
  for (Tiles tiles(p.schedule, share); tiles.more(); tiles.advance()) {
    const Schedule::Work work = tiles.work();
    if (only_counts) {
      if (work.tile.n == 0)
        load_raw<0>(p, shared, share, work, 0, at);
      continue;
    }
    if (special)
      load_raw<1>(p, shared, share, work, plan::planes, at);
    load_raw<plan::planes>(p, shared, share, work, 0, at);
  }
}

}  // namespace tilesmith
