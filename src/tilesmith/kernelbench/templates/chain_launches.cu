// The launches of the kernels of chain_kernels.cu.
#include <cuda_runtime.h>

#include <vector>

namespace chains {

template <class Chain, int width, class Team>
void launch_segments(const Arguments& g, cudaStream_t stream) {
  constexpr unsigned block = threads_with(Team::size), in_block = block / Team::size;
  over_segments<Chain, width, Team><<<(g.segments - 1) / in_block + 1, block, 0, stream>>>(g);
}

template <class Chain, int width>
void launch_width(const Arguments& g, cudaStream_t stream) {
  if constexpr (!Chain::has_segments) {
    constexpr unsigned max_blocks = 1u << 14;
    const unsigned blocks = (g.length - 1) / (threads * width) + 1;
    const unsigned grid = blocks < max_blocks ? blocks : max_blocks;
    over_elements<Chain, width><<<grid, threads, 0, stream>>>(g);
  } else if (g.length <= 16 * width) {
    launch_segments<Chain, width, Lanes<8>>(g, stream);
  } else if (g.length <= 256 * width) {
    launch_segments<Chain, width, Lanes<32>>(g, stream);
  } else if (g.length <= 8192 * width) {
    launch_segments<Chain, width, Block<threads>>(g, stream);
  } else {
    launch_segments<Chain, width, Block<1024>>(g, stream);
  }
}

template <class Chain>
void launch(const Arguments& g, bool by_four, cudaStream_t stream) {
  if (by_four)
    launch_width<Chain, 4>(g, stream);
  else
    launch_width<Chain, 1>(g, stream);
}

}  // namespace chains

const char* run_chain(int number, const float* const* tensors, const unsigned (*lies)[2], int count, float* out,
                      unsigned segments, unsigned length, const std::vector<double>& numbers, bool by_four,
                      void* stream) {
  using Launch = void (*)(const chains::Arguments&, bool, cudaStream_t);
  static const Launch launches[] = {LAUNCHES};
  chains::Arguments g = {};
  for (int i = 0; i < count; ++i) g.x[i] = {tensors[i], lies[i][0], lies[i][1]};
  g.out = out, g.segments = segments, g.length = length;
  for (size_t i = 0; i < numbers.size(); ++i) g.numbers[i] = static_cast<float>(numbers[i]);
  launches[number](g, by_four, static_cast<cudaStream_t>(stream));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
