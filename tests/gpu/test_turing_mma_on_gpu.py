"""float16 as Turing multiplies it, which later GPUs execute: every tile, layout and line, and the plans of a T4."""

import itertools
from dataclasses import replace

import pytest
import torch

from tilesmith.core.device import KNOWN_GPUS, installed
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.kernels.mma.family import HALF
from tilesmith.kernels.mma.tiles import Cut, Tile
from tilesmith.planner import choose
from tilesmith.runtime.executor import compiled

T4 = KNOWN_GPUS["t4"]
SHAPES = [(200, 1000, 136), (67, 133, 65), (64, 4097, 48), (1, 1, 1), (300, 40, 2000), (130, 34, 1)]


def small_integers(rows: int, columns: int, by_columns: bool, gap: int) -> torch.Tensor:
    """Sums of their products are exact. Lines have as many elements more between them than aligned ones would."""
    lines, length = (columns, rows) if by_columns else (rows, columns)
    own = torch.randint(-2, 3, (lines, -(-length // 8) * 8 + gap), device="cuda").half()
    return own[:, :length].T if by_columns else own[:, :length]


@pytest.mark.parametrize("tile", HALF.tiles_on(T4), ids=str)
def test_every_layout_and_line(tile: Tile) -> None:
    lines = [(by_columns, gap) for by_columns in (False, True) for gap in (0, 1, 2)]
    for (m, k, n), x, y in itertools.product(SHAPES, lines, lines):
        a, b = small_integers(m, k, *x), small_integers(k, n, *y)
        exact = (a.double() @ b.double()).half()
        for split_k in (1, 3) if k >= 1000 else (1,):
            out = torch.full((m, n + 3), 77.0, dtype=torch.float16, device="cuda")
            plan = HALF.plan(Problem.of(a, b, out=out[:, :n]), T4, Cut(tile, split_k))
            compiled(replace(plan, device=installed(0)), 0)(a, b, out[:, :n])
            assert torch.equal(out[:, :n], exact), (m, k, n, x, y, split_k)
            assert (out[:, n:] == 77).all()


@pytest.mark.parametrize("tile", HALF.tiles_on(T4), ids=str)
def test_epilogues(tile: Tile) -> None:
    a, b = small_integers(150, 200, False, 0), small_integers(200, 264, True, 0)
    epilogue = Epilogue(small_integers(1, 264, False, 0)[0], "relu", small_integers(150, 264, False, 0))
    assert epilogue.bias is not None and epilogue.residual is not None
    exact = torch.relu(a.double() @ b.double() + epilogue.bias.double()) + epilogue.residual.double()
    plan = HALF.plan(Problem.of(a, b, epilogue=epilogue), T4, Cut(tile))
    out = torch.empty(150, 264, dtype=torch.float16, device="cuda")
    compiled(replace(plan, device=installed(0)), 0)(a, b, out, None, epilogue)
    assert torch.equal(out, exact.half())


@pytest.mark.parametrize("m, k, n", [(4096, 4096, 4096), (33, 20_000, 65), (2050, 129, 4100), (8205, 2949, 5921)])
def test_what_a_t4_would_run(m: int, k: int, n: int) -> None:
    a, b = (torch.randn(shape, device="cuda").half() for shape in ((m, k), (k, n)))
    truth = a.float() @ b.float()
    for left, right in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
        plan = choose(Problem.of(left, right), T4)
        assert plan.family == HALF.name
        out = torch.full((m, n), torch.nan, dtype=torch.float16, device="cuda")
        compiled(replace(plan, device=installed(0)), 0)(left, right, out)
        assert (out.float() - truth).norm() <= 3e-4 * truth.norm()
