// From accumulators to the output. A consumer's 64 rows pass through shared memory in chunks of a
// few columns, and go on from there by TMA; or, where lines of the output start at any
// element, by the threads.
//
// Results of 16 bits wait in registers, in half of the space that the sums had, and are stored
// while the next tile is multiplied.
#pragma once

#include "batch.cuh"
#include "element.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "staged_chunk.cuh"
#include "tile.cuh"

namespace tilesmith {

// Where a consumer's part of a tile goes.
template <typename Output>
struct Destination {
  BatchIndex batch;  // for TMA
  Output* matrix;    // for the threads
  int first_m, first_n;
};

// Writes a few lines of a staged chunk, as far as they are inside the output: every `step`-th one from `first` on.
template <typename Chunk, int at_once, typename Output, typename Lines>
__device__ __forceinline__ void store_lines(const Lines& out, unsigned chunk, int first_line, int first_in_line,
                                            int first, int step, int lane) {
  constexpr int length = Chunk::length;
  const int end = min(length, out.length - first_in_line);
  const int lines = min(Chunk::lines, out.count - first_line);
  if (end <= 0)
    return;
  Output* to = out.first + first_line * out.stride + first_in_line;

  if constexpr (sizeof(Output) == 4) {
#pragma unroll
    for (int x = lane; x < length; x += 32) {
      float value[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        value[i] = __uint_as_float(ptx::shared_load(Chunk::address(chunk, (first + i * step) % Chunk::lines, x)));
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (first + i * step < lines && x < end)
          to[(first + i * step) * out.stride + x] = value[i];
    }
  } else {
    unsigned pairs[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      pairs[i] = ptx::shared_load(Chunk::address(chunk, (first + i * step) % Chunk::lines, lane * 2 % length));
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      // Elements go in pairs that are aligned in memory. A line that starts with half of a pair gives its first
      // and its last element alone, and pairs of what lies in two lanes.
      Output* const at = to + (first + i * step) * out.stride;
      const int is_odd = reinterpret_cast<unsigned long long>(at) / sizeof(Output) % 2;
      const unsigned before = __shfl_up_sync(0xffffffffu, pairs[i], 1);
      const unsigned pair = __funnelshift_l(before, pairs[i], 16 * is_odd);
      const int x = lane * 2 - is_odd, last = first + i * step < lines ? end - 1 : -2;
      Output* const own = at + x;
      // Without branches: most of a line's time would be theirs.
      if (x >= 0 && x < last)
        *reinterpret_cast<unsigned*>(own) = pair;
      if (x == last)
        own[0] = {static_cast<unsigned short>(pair)};
      if (x < 0 && last >= 0)
        own[1] = {static_cast<unsigned short>(pair >> 16)};
      if (length == 64 && is_odd && lane == 31 && last == length - 1)
        own[2] = {static_cast<unsigned short>(pairs[i] >> 16)};
    }
  }
}

// Writes a few lines of a staged chunk, as far as they are inside the output, whose lines start at multiples of 16
// bytes.
template <typename Chunk, int lines_at_once, typename Output, typename Lines>
__device__ __forceinline__ void store_vectors(const Lines& out, unsigned chunk, int first_line, int first_in_line,
                                              int first, int lane) {
  constexpr int vector = 16 / sizeof(Output);
  constexpr int per_line = Chunk::length / vector;
  constexpr int at_once = lines_at_once * per_line / 32;
  static_assert(at_once * 32 == lines_at_once * per_line);
  Vector<unsigned, 4> staged[at_once];
#pragma unroll
  for (int i = 0; i < at_once; ++i) {
    const int at = i * 32 + lane;
    staged[i] = ptx::shared_load_vector(Chunk::address(chunk, first + at / per_line, at % per_line * vector));
  }
#pragma unroll
  for (int i = 0; i < at_once; ++i) {
    const int at = i * 32 + lane;
    const int line = first_line + first + at / per_line, in_line = first_in_line + at % per_line * vector;
    if (line < out.count && in_line < out.length)
      *reinterpret_cast<Vector<unsigned, 4>*>(out.first + line * out.stride + in_line) = staged[i];
  }
}

// Writes `columns` columns of a fragment of floats, from `first` on, as far as they are inside the output, whose lines
// start at multiples of 16 bytes and run along N. Of 16 columns, neighbours exchange what they have of eight each: then
// a thread has four in a row, and four threads 64 bytes.
template <int first, int columns, typename Lines, int elements>
__device__ __forceinline__ void store_fragment(const Lines& out, const Fragment<float, elements>& fragment, int first_m,
                                               int first_n, int lane) {
  static_assert(columns % 16 == 0);
  const bool odd = lane % 2;
  const int m = first_m + lane / 4, n = first_n + first + (odd ? 8 : 0) + lane % 4 / 2 * 4;
  float* to = out.first + m * out.stride + n;
#pragma unroll
  for (int j = 0; j < columns; j += 16)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* left = fragment.values + (first + j) / 2 + 2 * h;
      const float* right = left + 4;
      float exchanged[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) exchanged[e] = __shfl_xor_sync(0xffffffffu, odd ? left[e] : right[e], 1);
      const Vector<float, 4> four = {odd ? exchanged[0] : left[0], odd ? exchanged[1] : left[1],
                                     odd ? right[0] : exchanged[0], odd ? right[1] : exchanged[1]};
      if (m + 8 * h < out.count && n + j < out.length)
        *reinterpret_cast<Vector<float, 4>*>(to + 8 * h * out.stride + j) = four;
    }
}

// Stores what a consumer has computed, in lines that may start at any element of the output: stages a chunk, and sends
// it on in one or more parts, between which there is time for other work.
template <typename Output, typename Lines, int chunk_columns, bool along_m, bool by_warp, Store how, int buffers,
          int out_dims>
class Storer {
  static constexpr bool by_tma = how == Store::boxes;

  const ptx::TensorMap& map_;
  const Lines lines_;
  const unsigned buffers_;
  const int barrier_;
  const int warp_ = threadIdx.x % warpgroup_threads / 32;
  const int lane_ = threadIdx.x % 32;

 public:
  using Chunk = StagedChunk<Output, chunk_columns, along_m, by_warp, how == Store::vectors>;
  static constexpr bool is_direct = how == Store::direct;
  static constexpr int shared_bytes = is_direct ? 0 : (by_warp ? 4 : 1) * buffers * Chunk::bytes;
  static constexpr int lines_of_warp = Chunk::lines / (by_warp ? 1 : 4);
  static constexpr int lines_per_part = lines_of_warp < 4 ? lines_of_warp : 4;
  static constexpr int parts = by_tma ? 1 : lines_of_warp / lines_per_part;

  // `staging`: shared_bytes of this consumer's own. `barrier`: a named barrier of its own.
  __device__ __forceinline__ Storer(const ptx::TensorMap& map, const Lines& lines, const unsigned char* staging,
                                    int barrier)
      : map_(map),
        lines_(lines),
        buffers_(ptx::shared_address(staging) +
                 (by_warp ? threadIdx.x % warpgroup_threads / 32 * buffers * Chunk::bytes : 0)),
        barrier_(barrier) {}

  template <int which, int elements>
  __device__ __forceinline__ void stage(const Fragment<Output, elements>& fragment) const {
    if (issues())  // what was in the buffer must have left it
      ptx::tma_store_wait_read<stores_since<which, 2 * elements / chunk_columns>>();
    sync();
    Chunk::template write<which * chunk_columns>(chunk(which), fragment, warp_, lane_);
    if constexpr (by_tma)
      ptx::async_proxy_fence();
    sync();
  }

  // A staged chunk may be changed before it is sent, 16 bytes of a line at a time: each of those who staged it has some
  // of them, one in each turn. `change` gets them with their first row and column in the tile.
  static constexpr int per_vector = 16 / sizeof(Output);
  static constexpr int vectors = Chunk::lines * Chunk::length / per_vector;
  static constexpr int changers = by_warp ? 32 : warpgroup_threads;
  static constexpr int turns = (vectors + changers - 1) / changers;

  template <typename Change>
  __device__ __forceinline__ void change(int which, int turn, const Change& change) const {
    const int vector = turn * changers + (by_warp ? lane_ : static_cast<int>(threadIdx.x) % warpgroup_threads);
    if (vectors % changers != 0 && vector >= vectors)
      return;
    const int line = vector / (Chunk::length / per_vector), at = vector % (Chunk::length / per_vector) * per_vector;
    const int first_m = by_warp ? warp_ * 16 : 0, first_n = which * chunk_columns;
    const unsigned address = Chunk::address(chunk(which), line, at);
    ptx::shared_store(address, change(ptx::shared_load_vector(address), first_m + (along_m ? at : line),
                                      first_n + (along_m ? line : at)));
  }
  __device__ __forceinline__ void end_changes() const {
    if constexpr (by_tma)
      ptx::async_proxy_fence();
    sync();
  }

  // Between two tiles, what a chunk is staged in can be used for something else, each warp's rows by itself.
  __device__ __forceinline__ unsigned lend() const {
    if (issues())
      ptx::tma_store_wait_read<0>();
    sync();
    return ptx::forgotten(chunk(0));
  }
  __device__ __forceinline__ int first_lent_line() const { return by_warp ? 0 : warp_ * 16; }

  __device__ __forceinline__ void send(int which, int part, const Destination<Output>& to) const {
    const int m = to.first_m + (by_warp ? warp_ * 16 : 0), n = to.first_n + which * chunk_columns;
    const int line = along_m ? n : m, in_line = along_m ? m : n;
    if constexpr (by_tma) {
      if (issues()) {
#pragma unroll
        for (int box = 0; box < Chunk::boxes; ++box)
          ptx::tma_store(map_, coordinates<out_dims>(in_line + box * Chunk::line, line, to.batch),
                         chunk(which) + box * Chunk::box_bytes);
        ptx::tma_store_commit();
      }
    } else {
      constexpr int step = by_warp ? 1 : 4;
      Lines lines = lines_;
      lines.first = to.matrix;
      if constexpr (how == Store::vectors) {
        store_vectors<Chunk, lines_per_part, Output>(lines, chunk(which), line, in_line, part * lines_per_part, lane_);
        return;
      }
      store_lines<Chunk, lines_per_part, Output>(lines, chunk(which), line, in_line,
                                                 (by_warp ? 0 : warp_) + part * lines_per_part * step, step, lane_);
    }
  }

  // All at once, without staging.
  template <int which, int elements>
  __device__ __forceinline__ void store(const Fragment<Output, elements>& fragment,
                                        const Destination<Output>& to) const {
    Lines lines = lines_;
    lines.first = to.matrix;
    store_fragment<which * chunk_columns, chunk_columns>(lines, fragment, to.first_m + warp_ * 16, to.first_n, lane_);
  }

  // Before the block ends.
  __device__ __forceinline__ void drain() const {
    if (issues())
      ptx::tma_store_wait_read<0>();
  }

 private:
  // Stores since the one from the same buffer. That one was of the tile before for the first chunks of a tile.
  template <int which, int chunks>
  static constexpr int stores_since = which >= buffers ? buffers - 1 : which + (chunks - 1 - which) % buffers;

  __device__ __forceinline__ unsigned chunk(int which) const { return buffers_ + which % buffers * Chunk::bytes; }

  __device__ __forceinline__ bool issues() const { return by_tma && lane_ == 0 && (by_warp || warp_ == 0); }

  // Waits for those who stage together.
  __device__ __forceinline__ void sync() const {
    if constexpr (by_warp)
      __syncwarp();
    else
      ptx::named_barrier_sync(barrier_, warpgroup_threads);
  }
};

}  // namespace tilesmith
