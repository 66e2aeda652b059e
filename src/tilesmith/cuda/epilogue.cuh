// From accumulators to the output. A consumer's 64 rows pass through shared memory in chunks of a
// few columns, and go on from there by the copy engine; or, where lines of the output start at any
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
#include "tile.cuh"

namespace tilesmith {

template <typename Output>
__device__ __forceinline__ unsigned narrow_pair(float low, float high);
template <>
__device__ __forceinline__ unsigned narrow_pair<float16>(float low, float high) {
  return ptx::float_to_half_pair(low, high);
}
template <>
__device__ __forceinline__ unsigned narrow_pair<bfloat16>(float low, float high) {
  return ptx::float_to_bfloat16_pair(low, high);
}

// What a thread holds of a tile, in the output's type. The thread of a warp has in element
// 4 j + 2 h + e the value of row lane / 4 + 8 h of the warp's rows and column 8 j + 2 (lane % 4) + e.
template <typename Output, int elements>
struct Fragment {
  unsigned pairs[elements / 2];

  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements / 2; ++i) pairs[i] = narrow_pair<Output>(sum[2 * i], sum[2 * i + 1]);
  }
};
template <int elements>
struct Fragment<float, elements> {
  float values[elements];

  __device__ __forceinline__ void take(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i];
  }
  __device__ __forceinline__ void add(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] += sum[i];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = 0.0f;
  }
  // The infinities and NaNs of the sums, and zeros for all others.
  __device__ __forceinline__ void take_special(const float (&sum)[elements]) {
#pragma unroll
    for (int i = 0; i < elements; ++i) values[i] = sum[i] - sum[i] == 0.0f ? 0.0f : sum[i];
  }
};

// How results leave shared memory.
enum class Store {
  boxes,    // by the copy engine
  vectors,  // by the threads, 16 bytes each
  lines,    // by the threads, from and to any element
  direct,   // never in it: by the threads from their registers, 16 bytes each
};

// `columns` columns of a tile in shared memory. Its lines are contiguous in the output: they are rows of
// the chunk or, if the output is stored transposed (along_m), columns. The warpgroup stages its 64 rows
// together, or each warp its own 16. `padded`: whole lines, with gaps that keep them in different banks. Otherwise
// boxes as the copy engine reads them.
template <typename Output, int columns, bool along_m, bool by_warp, bool padded>
struct StagedChunk {
  static constexpr bool wide = sizeof(Output) == 4;
  static constexpr int rows = by_warp ? 16 : wgmma_m;
  static constexpr int length = along_m ? rows : columns;  // elements of a line
  static constexpr int widest = 128 / sizeof(Output);
  static constexpr int line = length < widest ? length : widest;  // elements of it in one box
  static constexpr int line_bytes = line * sizeof(Output);
  static constexpr int lines = along_m ? columns : rows;
  static constexpr int boxes = length / line;  // side by side
  static constexpr int box_bytes = lines * line_bytes;
  static constexpr int pitch = length * sizeof(Output) + (wide ? 32 : 16);  // of padded lines
  static constexpr int bytes = padded ? lines * pitch : boxes * box_bytes;
  static_assert(!(along_m && by_warp) && boxes * line == length);
  static_assert(line_bytes == 16 || line_bytes == 32 || line_bytes == 64 || line_bytes == 128);
  static_assert(box_bytes % 128 == 0);

  // The address of an element of a line in a chunk that is staged at `chunk`.
  static __device__ __forceinline__ unsigned address(unsigned chunk, int which_line, int at) {
    if constexpr (padded)
      return chunk + which_line * pitch + at * static_cast<int>(sizeof(Output));
    return swizzled<line_bytes>(chunk + at / line * box_bytes + which_line * line_bytes +
                                at % line * static_cast<int>(sizeof(Output)));
  }
  static __device__ __forceinline__ unsigned address_of(unsigned chunk, int m, int n) {
    return along_m ? address(chunk, n, m) : address(chunk, m, n);
  }

  // Stages the columns from `first` on of the fragment.
  template <int first, int elements>
  static __device__ __forceinline__ void write(unsigned chunk, const Fragment<Output, elements>& fragment, int warp,
                                               int lane) {
    const int warp_row = by_warp ? 0 : warp * 16;
    if constexpr (wide) {
      const float* values = fragment.values + first / 2;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int m = warp_row + lane / 4 + 8 * h;
          const int n = 8 * j + lane % 4 * 2;
          const float x = values[4 * j + 2 * h], y = values[4 * j + 2 * h + 1];
          if constexpr (along_m) {
            ptx::shared_store(address_of(chunk, m, n), x);
            ptx::shared_store(address_of(chunk, m, n + 1), y);
          } else {
            ptx::shared_store(address_of(chunk, m, n), x, y);
          }
        }
    } else {
      const unsigned* pairs = fragment.pairs + first / 4;
      // The lane's row of one of the 8x8 matrices: its element that comes first in memory.
      const int m = warp_row + lane / 8 % 2 * 8 + (along_m ? 0 : lane % 8);
      const int n = lane / 16 * 8 + (along_m ? lane % 8 : 0);
      if constexpr (columns % 16 == 0) {
#pragma unroll
        for (int g = 0; g < columns / 16; ++g) {
          const unsigned* x = pairs + 4 * g;
          const unsigned at = address_of(chunk, m, n + 16 * g);
          if constexpr (along_m)
            ptx::store_matrices_transposed(at, x[0], x[1], x[2], x[3]);
          else
            ptx::store_matrices(at, x[0], x[1], x[2], x[3]);
        }
      } else {
        static_assert(columns == 8);
        const unsigned at = address_of(chunk, m, n % 8);
        if constexpr (along_m)
          ptx::store_matrices_transposed(at, pairs[0], pairs[1]);
        else
          ptx::store_matrices(at, pairs[0], pairs[1]);
      }
    }
  }
};

// Where a consumer's part of a tile goes.
template <typename Output>
struct Destination {
  BatchIndex batch;  // for the copy engine
  Output* matrix;    // for the threads
  int first_m, first_n;
};

// The lines of one matrix of the output: they may start at any element.
template <typename Output>
struct OutputLines {
  Output* first;
  long long stride;
  int count;
  int length;
};

// Writes a few lines of a staged chunk, as far as they are inside the output: every `step`-th one from `first` on.
template <typename Chunk, int at_once, typename Output>
__device__ __forceinline__ void store_lines(const OutputLines<Output>& out, unsigned chunk, int first_line,
                                            int first_in_line, int first, int step, int lane) {
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
template <typename Chunk, int lines_at_once, typename Output>
__device__ __forceinline__ void store_vectors(const OutputLines<Output>& out, unsigned chunk, int first_line,
                                              int first_in_line, int first, int lane) {
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
template <int first, int columns, int elements>
__device__ __forceinline__ void store_fragment(const OutputLines<float>& out, const Fragment<float, elements>& fragment,
                                               int first_m, int first_n, int lane) {
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

// Stores what a consumer has computed: stages a chunk, and sends it on in one or more parts, between which
// there is time for other work.
template <typename Output, int chunk_columns, bool along_m, bool by_warp, Store how, int buffers, int out_rank>
class Storer {
  static constexpr bool by_tma = how == Store::boxes;

  const ptx::TensorMap& map_;
  const OutputLines<Output> lines_;
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
  __device__ __forceinline__ Storer(const ptx::TensorMap& map, const OutputLines<Output>& lines,
                                    const unsigned char* staging, int barrier)
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
          ptx::tma_store(map_, coordinates<out_rank>(in_line + box * Chunk::line, line, to.batch),
                         chunk(which) + box * Chunk::box_bytes);
        ptx::tma_store_commit();
      }
    } else {
      constexpr int step = by_warp ? 1 : 4;
      OutputLines<Output> lines = lines_;
      lines.first = to.matrix;
      if constexpr (how == Store::vectors) {
        store_vectors<Chunk, lines_per_part>(lines, chunk(which), line, in_line, part * lines_per_part, lane_);
        return;
      }
      store_lines<Chunk, lines_per_part>(lines, chunk(which), line, in_line,
                                         (by_warp ? 0 : warp_) + part * lines_per_part * step, step, lane_);
    }
  }

  // All at once, without staging.
  template <int which, int elements>
  __device__ __forceinline__ void store(const Fragment<Output, elements>& fragment,
                                        const Destination<Output>& to) const {
    OutputLines<Output> lines = lines_;
    lines.first = to.matrix;
    store_fragment<which * chunk_columns, chunk_columns>(lines, fragment, to.first_m + warp_ * 16, to.first_n, lane_);
  }

  // Before the block ends.
  __device__ __forceinline__ void finish() const {
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
