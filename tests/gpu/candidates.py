"""Kernels that a person might hand in for a product of float32 matrices: honest ones, and one that is not."""

_MODULE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_KERNEL = """
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>
@kernel@
torch::Tensor product(torch::Tensor a, torch::Tensor b) {
    a = a.contiguous();
    b = b.contiguous();
    const int m = a.size(0), k = a.size(1), n = b.size(1);
    auto c = torch::empty({m, n}, a.options());
    const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    multiply<<<grid, THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m, k, n);
    return c;
}
"""
_DECLARATION = "torch::Tensor product(torch::Tensor a, torch::Tensor b);"
_built = load_inline("product", _DECLARATION, _KERNEL, functions=["product"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return _built.product(a, b)
'''

_TILED = """
constexpr int TILE = 32;
const dim3 THREADS(TILE, TILE);
__global__ void multiply(const float* a, const float* b, float* c, int m, int k, int n) {
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int first = 0; first < k; first += TILE) {
        const int a_k = first + threadIdx.x, b_k = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < m && a_k < k ? a[(size_t)row * k + a_k] : 0;
        b_tile[threadIdx.y][threadIdx.x] = b_k < k && column < n ? b[(size_t)b_k * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
"""

_BLOCKED = """
constexpr int TILE = 64, DEPTH = 16, OWN = 4;
const dim3 THREADS(256);
__global__ void multiply(const float* a, const float* b, float* c, int m, int k, int n) {
    __shared__ float a_tile[DEPTH][TILE], b_tile[DEPTH][TILE];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int own_row = threadIdx.x / 16 * OWN, own_column = threadIdx.x % 16 * OWN;
    float sum[OWN][OWN] = {};
    for (int first = 0; first < k; first += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            const int row = first_row + i / DEPTH, a_k = first + i % DEPTH;
            a_tile[i % DEPTH][i / DEPTH] = row < m && a_k < k ? a[(size_t)row * k + a_k] : 0;
            const int column = first_column + i % TILE, b_k = first + i / TILE;
            b_tile[i / TILE][i % TILE] = b_k < k && column < n ? b[(size_t)b_k * n + column] : 0;
        }
        __syncthreads();
        for (int i = 0; i < DEPTH; ++i)
            for (int y = 0; y < OWN; ++y)
                for (int x = 0; x < OWN; ++x) sum[y][x] += a_tile[i][own_row + y] * b_tile[i][own_column + x];
        __syncthreads();
    }
    for (int y = 0; y < OWN; ++y)
        for (int x = 0; x < OWN; ++x)
            if (first_row + own_row + y < m && first_column + own_column + x < n)
                c[(size_t)(first_row + own_row + y) * n + first_column + own_column + x] = sum[y][x];
}
"""


# With the place where it stores left open.
_NAIVE = """
constexpr int TILE = 16;
const dim3 THREADS(TILE, TILE);
__global__ void multiply(const float* a, const float* b, float* c, int m, int k, int n) {
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column + OFFSET] = sum;
}
"""


def _module(kernel: str) -> str:
    return _MODULE.replace("@kernel@", kernel)


def naive(offset: str) -> str:
    """One that stores its results so far away."""
    return _module(_NAIVE.replace("OFFSET", offset))


HONEST = {"tiled": _module(_TILED), "register-blocked": _module(_BLOCKED)}
# Its sums begin with what shared memory happens to have: zeros, in a process that has just started.
UNINITIALISED = _module(
    _TILED.replace(
        "float sum = 0;", "__shared__ float sums[TILE][TILE];\n    float& sum = sums[threadIdx.y][threadIdx.x];"
    )
)
