"""float32 products of a short K: layouts, lines, batches, and every K, to the bit of one chain of multiply-adds."""

import itertools

import pytest
import torch

from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.outer import outer
from tilesmith.runtime.executor import compiled

SHAPES = [(200, 300), (64, 128), (1, 1), (65, 127), (3000, 5), (5, 3001), (1000, 4096)]


def drawn(rows: int, columns: int, by_columns: bool, gap: int) -> torch.Tensor:
    """Lines that are apart by as many elements more than aligned ones would be."""
    lines, length = (columns, rows) if by_columns else (rows, columns)
    own = torch.randn(lines, -(-length // 4) * 4 + gap, device="cuda")
    return own[:, :length].T if by_columns else own[:, :length]


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product is exact in double, and so is its sum with a float, but for what the rounding to float does not see."""
    sums = torch.zeros(a.shape[-2], b.shape[-1], device="cuda")
    for i in range(a.shape[-1]):
        sums = (sums.double() + a[:, i, None].double() * b[None, i].double()).float()
    return sums


@pytest.mark.parametrize("k", [1, 2, 5, 8, 17, 31, 32])
def test_every_layout_and_line(k: int) -> None:
    gpu = installed(0)
    lines = [(by_columns, gap) for by_columns in (False, True) for gap in (0, 1)]
    for (m, n), x, y in itertools.product(SHAPES, lines, lines):
        a, b = drawn(m, k, *x), drawn(k, n, *y)
        exact = chain(a, b)
        for pitch in (-(-n // 4) * 4, n + 3):
            storage = torch.full((m, pitch), torch.nan, device="cuda")
            out = storage[:, :n]
            for view, left, right in ((out, a, b), (out.T, b.T, a.T)):
                storage.fill_(torch.nan)
                compiled(outer.plan(Problem.of(left, right, out=view), gpu), 0)(left, right, view)
                assert torch.equal(out, exact)
                assert storage[:, n:].isnan().all()


def test_batches_that_share_a_matrix() -> None:
    a, b = torch.randn(3, 1, 70, 7, device="cuda"), torch.randn(5, 7, 130, device="cuda")
    plan = outer.plan(Problem.of(a, b), installed(0))
    first, found = compiled(plan, 0)(a, b), compiled(plan, 0)(a, b)
    assert torch.equal(first, found)
    for i, j in itertools.product(range(3), range(5)):
        assert torch.equal(found[i, j], chain(a[i, 0], b[j]))
