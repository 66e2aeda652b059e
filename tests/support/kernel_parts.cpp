// Parts of the kernels as functions that Python can call: which tiles a block takes, and which places of shared memory
// the lanes of a warp use at once. No product tells either.
#include <cstring>
#include <numeric>
#include <vector>

#include "column_walk.cuh"
#include "kernels/hopper/fp32_tile.cuh"
#include "kernels/hopper/turned_tile.cuh"
#include "kernels/mma/copied_tile.cuh"
#include "scheduler.cuh"

namespace tilesmith::emulator {

Index thread_index, block_index, grid_size, block_size;
unsigned char* shared_window;

static std::vector<unsigned> copied;  // where copies go, in bytes

void copy_start(unsigned to, const void*, int, int) { copied.push_back(to); }

}  // namespace tilesmith::emulator

using namespace tilesmith;

// Shared memory in which every element, of as many bytes as an unsigned number, has its number.
template <typename Number>
static void* numbered(int elements) {
  static std::vector<Number> memory;
  memory.resize(elements);
  std::iota(memory.begin(), memory.end(), Number(0));
  emulator::shared_window = reinterpret_cast<unsigned char*>(memory.data());
  return memory.data();
}

// Where the copies of a block go, in bytes: of the first instruction those of all threads, then of the next.
template <typename Tile, typename Number, int extent, int depth, int threads, bool along_k>
void find_copies(unsigned* to) {
  Number* const tile = static_cast<Number*>(numbered<Number>(Tile::elements));
  for (int thread = 0; thread < threads; ++thread) {
    emulator::thread_index.x = thread;
    emulator::copied.clear();
    Tile(tile, 0, extent, along_k ? depth : 1, along_k ? 1 : extent).start(ptx::shared_address(tile), depth);
    for (unsigned i = 0; i < emulator::copied.size(); ++i) to[i * threads + thread] = emulator::copied[i];
  }
}

// The elements that a warp reads whose tile is from here on: [neighbour][k] of each lane.
template <typename Tile, typename Number, int group>
void find_reads(unsigned* to, int first_mn, int first_k) {
  const Number* const tile = static_cast<const Number*>(numbered<Number>(Tile::elements));
  for (int lane = 0; lane < 32; ++lane) {
    Quad<Number> values[group];
    Tile::read(values, tile, Tile::place(first_mn + group_of(lane / 4) * group, first_k + lane % 4 * lane_k));
    for (const Quad<Number>& quad : values)
      for (const Number number : quad.element) *to++ = number;
  }
}

// The words of all fragments of each thread of a consumer: [thread][part][element].
template <int extent, bool mn_major>
void find_fragments(unsigned* to) {
  using Tile = Fp32Tile<extent, mn_major>;
  numbered<unsigned>(Tile::bytes / sizeof(unsigned));
  for (int thread = 0; thread < warpgroup_threads; ++thread) {
    const typename Tile::Reader reader(thread);
    const Fp32Fragment parts[] = {reader.template read<0>(0), reader.template read<1>(0), reader.template read<2>(0),
                                  reader.template read<3>(0)};
    std::memcpy(to + thread * 32, parts, sizeof parts);
  }
}

// The same of an A that lies across K: [thread][step][element].
extern "C" void turned_fragments(unsigned* to) {
  using Tile = TurnedTile<64>;
  numbered<unsigned>(Tile::bytes / sizeof(unsigned));
  for (int thread = 0; thread < warpgroup_threads; ++thread) {
    const Tile::Reader reader(thread);
    Tile::Fragment steps[Tile::steps];
    reader.read<0>(0, steps[0]);
    reader.read<1>(0, steps[1]);
    reader.read<2>(0, steps[2]);
    reader.read<3>(0, steps[3]);
    std::memcpy(to + thread * 16, steps, sizeof steps);
  }
}

// How often every tile is visited, and by how many columns of tiles each block goes on: [batch][part of K][m][n],
// [block].
using Share = ClusterShare<64, 64, 1>;
template <typename Tiles>
void walk(const Schedule& schedule, int blocks, int* visits, int* columns) {
  emulator::grid_size.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    emulator::block_index.x = block;
    const Share share;
    int last = -1;
    for (Tiles tiles(schedule, share); tiles.more(); tiles.advance()) {
      const Work work = tiles.work();
      const int matrix = work.batch * schedule.split_k + work.k_part;
      const Work urgent = tiles.urgent_work();  // the producer's, which is the same
      const bool is_same = urgent.tile.m == work.tile.m && urgent.tile.n == work.tile.n && urgent.batch == work.batch &&
                           urgent.k_part == work.k_part && urgent.first_k == work.first_k;
      visits[(matrix * schedule.tiles_m + work.tile.m) * schedule.tiles_n + work.tile.n] += is_same ? 1 : 1000;
      columns[block] += work.tile.n != last;
      last = work.tile.n;
    }
  }
}

extern "C" {
void walk_all(const Schedule* schedule, int blocks, int* visits, int* columns) {
  walk<Walk<Schedule, Share, true>>(*schedule, blocks, visits, columns);
}
void walk_columns(const Schedule* schedule, int blocks, int* visits, int* columns) {
  walk<ColumnWalk<Schedule, Share>>(*schedule, blocks, visits, columns);
}
void part_of_k(const Schedule* schedule, int k_part, int* first_and_count) {
  const Work work = work_at<true, false>(*schedule, k_part * schedule->tiles_m * schedule->tiles_n);
  first_and_count[0] = work.first_k;
  first_and_count[1] = work.k_steps;
}
}
