"""8-bit integers on the tensor cores: every tile, layout and line, and each plan of an A100."""

import itertools
from dataclasses import replace

import pytest
import torch

from tilesmith.core.device import KNOWN_GPUS, installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.mma import int8
from tilesmith.kernels.mma.tiles import TILES_OF_PAIRS, Cut, Tile
from tilesmith.planner import choose
from tilesmith.runtime.executor import compiled

SHAPES = [(200, 1000, 136), (67, 133, 65), (64, 4097, 48), (1, 1, 1), (300, 40, 2000), (130, 34, 1)]


def drawn(rows: int, columns: int, by_columns: bool, gap: int, dtype: torch.dtype) -> torch.Tensor:
    """Over the whole range of the type. Lines have as many elements more between them than aligned ones would."""
    lines, length = (columns, rows) if by_columns else (rows, columns)
    info, pitch = torch.iinfo(dtype), -(-length // 16) * 16 + gap
    own = torch.randint(info.min, info.max + 1, (lines, pitch), device="cuda", dtype=dtype)
    return own[:, :length].T if by_columns else own[:, :length]


def exact(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (a.double() @ b.double()).long().to(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("tile", TILES_OF_PAIRS, ids=str)
def test_every_layout_and_line(tile: Tile, dtype: torch.dtype) -> None:
    gpu = installed(0)
    lines = [(by_columns, gap) for by_columns in (False, True) for gap in (0, 1, 2, 4)]
    for (m, k, n), x, y in itertools.product(SHAPES, lines, lines):
        a, b = drawn(m, k, *x, dtype), drawn(k, n, *y, dtype)
        for out_dtype, split_k in itertools.product((torch.int32, dtype), (1, 3) if k >= 1000 else (1,)):
            out = torch.full((m, n + 3), 77, dtype=out_dtype, device="cuda")
            plan = int8.plan(Problem.of(a, b, out=out[:, :n], out_dtype=out_dtype), gpu, Cut(tile, split_k))
            compiled(plan, 0)(a, b, out[:, :n])
            assert torch.equal(out[:, :n], exact(a, b, out_dtype)), (m, k, n, x, y, out_dtype, split_k)
            assert (out[:, n:] == 77).all()


@pytest.mark.parametrize("m, k, n", [(4096, 4096, 4096), (33, 20_000, 65), (2050, 129, 4100)])
def test_what_an_a100_would_run(m: int, k: int, n: int) -> None:
    a, b = drawn(m, k, False, 0, torch.int8), drawn(k, n, False, 0, torch.int8)
    for right in (b, b.T.contiguous().T):
        plan = choose(Problem.of(a, right, out_dtype=torch.int32), KNOWN_GPUS["a100"])
        assert plan.family == int8.NAME
        out = torch.full((m, n), 77, dtype=torch.int32, device="cuda")
        compiled(replace(plan, device=installed(0)), 0)(a, right, out)
        assert torch.equal(out, exact(a, right, torch.int32))
