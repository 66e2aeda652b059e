"""A product by Triton, as an opponent: the usual tiled kernel, with the best of a few configurations. float32 is
multiplied as three TF32 products, which is its way to float32's accuracy on tensor cores, or as one."""

from typing import Any

import torch
import triton
import triton.language as tl

_CONFIGURATIONS = [
    triton.Config({"tile_m": m, "tile_n": n, "tile_k": k, "group_rows": 8}, num_stages=stages, num_warps=warps)
    for m, n, k, stages, warps in [
        (128, 256, 64, 3, 8),
        (128, 128, 64, 4, 8),
        (128, 128, 32, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 4),
        (128, 128, 32, 2, 8),
        (64, 32, 64, 4, 4),
    ]
]


@triton.autotune(configs=_CONFIGURATIONS, key=["m", "n", "k", "precision"])
@triton.jit
def _kernel(
    a,
    b,
    out,
    m,
    n,
    k,
    a_batch,
    a_m,
    a_k,
    b_batch,
    b_k,
    b_n,
    out_batch,
    out_m,
    out_n,
    precision: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group_rows: tl.constexpr,
):
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles_m, tiles_n = tl.cdiv(m, tile_m), tl.cdiv(n, tile_n)
    group = tile // (group_rows * tiles_n)
    rows_of_group = min(tiles_m - group * group_rows, group_rows)
    within = tile % (group_rows * tiles_n)
    rows = ((group * group_rows + within % rows_of_group) * tile_m + tl.arange(0, tile_m)).to(tl.int64)
    columns = (within // rows_of_group * tile_n + tl.arange(0, tile_n)).to(tl.int64)
    ks = tl.arange(0, tile_k).to(tl.int64)
    a_at = a + batch * a_batch + rows[:, None] * a_m + ks[None, :] * a_k
    b_at = b + batch * b_batch + ks[:, None] * b_k + columns[None, :] * b_n
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for first in range(0, k, tile_k):
        left = k - first
        x = tl.load(a_at, mask=(rows[:, None] < m) & (ks[None, :] < left), other=0.0)
        y = tl.load(b_at, mask=(ks[:, None] < left) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, y, total, input_precision=precision)
        a_at += tile_k * a_k
        b_at += tile_k * b_k
    out_at = out + batch * out_batch + rows[:, None] * out_m + columns[None, :] * out_n
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


def multiply(a: torch.Tensor, b: torch.Tensor, *, tf32: bool = False) -> torch.Tensor:
    """The product of two matrices, or of batches of them with as many on either side."""
    x, y = (each if each.dim() == 3 else each[None] for each in (a, b))
    (batches, m, k), n = x.shape, y.shape[-1]
    out = torch.empty((batches, m, n), dtype=a.dtype, device=a.device)

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(m, chosen["tile_m"]) * triton.cdiv(n, chosen["tile_n"]), batches

    precision = "tf32" if tf32 or a.dtype != torch.float32 else "tf32x3"
    _kernel[grid](x, y, out, m, n, k, *x.stride(), *y.stride(), *out.stride(), precision=precision)
    return out if a.dim() == 3 else out[0]
