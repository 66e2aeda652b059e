// Kernels of chains, one thread after the other: what a team of threads adds up, one has alone.
#include <cmath>
#include <cstring>
#include <vector>

#define __device__
#define __forceinline__ inline

struct float4 {
  float x, y, z, w;
};
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
using std::isinf;

KERNELS

struct Alone {
  unsigned rank = 0, size = 1;
  float sum(float x) const { return x; }
  float max(float x) const { return x; }
  float min(float x) const { return x; }
};

template <class Chain>
void run(const chains::Arguments& g, bool by_four) {
  for (unsigned segment = 0; segment < (Chain::has_segments ? g.segments : 1); ++segment)
    if (by_four)
      Chain::template run<4>(g, segment, Alone{});
    else
      Chain::template run<1>(g, segment, Alone{});
}

extern "C" void run_all(int number, const float* const* tensors, const unsigned (*lies)[2], int count, float* out,
                        unsigned segments, unsigned length, const double* numbers, int number_count, bool by_four) {
  static void (*const runs[])(const chains::Arguments&, bool) = {RUNS};
  chains::Arguments g = {};
  for (int i = 0; i < count; ++i) g.x[i] = {tensors[i], lies[i][0], lies[i][1]};
  g.out = out, g.segments = segments, g.length = length;
  for (int i = 0; i < number_count; ++i) g.numbers[i] = static_cast<float>(numbers[i]);
  runs[number](g, by_four);
}
