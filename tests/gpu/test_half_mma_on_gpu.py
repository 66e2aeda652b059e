"""16-bit products in a warp's registers: every tile and way to copy, and the bits of `hopper`'s sums."""

import itertools

import pytest
import torch

from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.mma.family import HALF
from tilesmith.kernels.mma.tiles import LARGE_TILES_OF_HALVES, TILES_OF_HALVES, Cut, Tile
from tilesmith.runtime.executor import compiled

SHAPES = [(200, 1000, 136), (67, 133, 65), (64, 4096, 48), (1, 1, 1), (300, 40, 2000)]


def drawn(rows: int, columns: int, by_columns: bool, gap: int, dtype: torch.dtype) -> torch.Tensor:
    """Lines with as many elements between them, from as many on: none, or an odd or even number of them."""
    lines, length = (columns, rows) if by_columns else (rows, columns)
    own = torch.randn(lines, -(-length // 8) * 8 + gap, device="cuda").to(dtype).flatten()
    found = own.as_strided((lines, length), (-(-length // 8) * 8 + gap, 1), 0)
    return found.T if by_columns else found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tile", (*TILES_OF_HALVES, *LARGE_TILES_OF_HALVES), ids=str)
def test_every_layout_and_way_to_copy(tile: Tile, dtype: torch.dtype) -> None:
    """The error against float64 is that of sums in float32 and one rounding. Where warps do not divide K, sums have the
    bits of those by wgmma."""
    gpu = installed(0)
    gaps = [(0, 0), (2, 0), (0, 2), (2, 2), (1, 0), (0, 1), (1, 1), (1, 2)]
    for (m, k, n), by_columns, gap in itertools.product(SHAPES, itertools.product((False, True), repeat=2), gaps):
        a, b = drawn(m, k, by_columns[0], gap[0], dtype), drawn(k, n, by_columns[1], gap[1], dtype)
        exact, scale = a.double() @ b.double(), a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)
        for split_k in (1, 3) if k >= 1000 else (1,):
            out = torch.full((m, n + gap[0] + 1), float("nan"), dtype=dtype, device="cuda")
            problem = Problem.of(a, b, out=out[:, :n])
            found = compiled(HALF.plan(problem, gpu, Cut(tile, split_k)), 0)(a, b, out[:, :n])
            rounding = torch.finfo(dtype).eps / 2
            assert ((found.double() - exact).abs() <= rounding * exact.abs() + 2e-6 * scale + 1e-7).all()
            assert out[:, n:].isnan().all()
            if split_k == tile.warps_k == 1:
                by_wgmma = compiled(hopper.plan(problem, gpu, hopper.Configuration(64, 64)), 0)
                assert torch.equal(found, by_wgmma(a, b, torch.empty_like(out)[:, :n]))
