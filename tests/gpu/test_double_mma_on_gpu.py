"""float64 on the tensor cores: every tile, layout and line, its epilogues, and its error beside torch's."""

import itertools
from collections.abc import Callable

import pytest
import torch

from tilesmith.core.device import installed
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.problem import Problem
from tilesmith.kernels.mma.family import FLOAT64
from tilesmith.kernels.mma.tiles import TILES_OF_FLOAT64, Cut, Tile
from tilesmith.planner import choose
from tilesmith.runtime.executor import compiled

SHAPES = [(200, 1000, 136), (67, 133, 65), (64, 4097, 48), (1, 1, 1), (300, 40, 2000), (130, 34, 1)]
HALF_BITS = 20


def laid_out(values: torch.Tensor, by_columns: bool, gap: int) -> torch.Tensor:
    """Lines that are as many elements longer than aligned ones would be, of NaNs."""
    own = values.T if by_columns else values
    lines, length = own.shape
    wide = torch.full((lines, -(-length // 2) * 2 + gap), float("nan"), dtype=torch.float64, device="cuda")
    wide[:, :length] = own
    return wide[:, :length].T if by_columns else wide[:, :length]


def integers(rows: int, columns: int, bits: int = HALF_BITS) -> torch.Tensor:
    """Of 20 bits: double precision has the sum of 4096 products exactly."""
    return torch.randint(-(2**bits), 2**bits, (rows, columns), device="cuda").double()


@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_every_layout_and_line_is_exact(tile: Tile) -> None:
    gpu = installed(0)
    lines = [(by_columns, gap) for by_columns in (False, True) for gap in (0, 1)]
    for (m, k, n), x, y in itertools.product(SHAPES, lines, lines):
        a, b = laid_out(integers(m, k), *x), laid_out(integers(k, n), *y)
        for split_k in (1, 3) if k >= 1000 else (1,):
            out = torch.full((m, n + 3), float("nan"), dtype=torch.float64, device="cuda")
            plan = FLOAT64.plan(Problem.of(a, b, out=out[:, :n]), gpu, Cut(tile, split_k))
            compiled(plan, 0)(a, b, out[:, :n])
            assert torch.equal(out[:, :n], a @ b), (m, k, n, x, y, split_k)
            assert out[:, n:].isnan().all()


@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_batches_and_results_by_columns(tile: Tile) -> None:
    a, b = (torch.randint(-999, 999, shape, device="cuda").double() for shape in ((3, 2, 67, 130), (2, 130, 75)))
    out = torch.full((3, 2, 75, 67), float("nan"), dtype=torch.float64, device="cuda")
    for own, split_k in itertools.product((out.mT, out.view(3, 2, 67, 75)), (1, 2)):
        plan = FLOAT64.plan(Problem.of(a, b, out=own), installed(0), Cut(tile, split_k))
        compiled(plan, 0)(a, b, own)
        assert torch.equal(own, a @ b)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_epilogues_are_computed_in_doubles(tile: Tile, activation: str | None) -> None:
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "None": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    for (m, k, n), gap in itertools.product([(136, 200, 264), (67, 133, 65)], (0, 1)):
        a = laid_out(torch.randn(m, k, dtype=torch.float64, device="cuda"), False, gap)
        b = laid_out(torch.randn(k, n, dtype=torch.float64, device="cuda"), False, gap)
        bias = torch.randn(n, dtype=torch.float64, device="cuda")
        residual = torch.randn(m, n, dtype=torch.float64, device="cuda")
        epilogue = Epilogue(bias=bias, activation=activation, residual=residual)
        wanted = functions[str(activation)](a @ b + bias) + residual
        for split_k in (1, 2):
            out = torch.full((m, n), float("nan"), dtype=torch.float64, device="cuda")
            plan = FLOAT64.plan(Problem.of(a, b, out=out, epilogue=epilogue), installed(0), Cut(tile, split_k))
            compiled(plan, 0)(a, b, out, epilogue=epilogue)
            torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 333, 777), (64, 4000, 64), (2048, 4096, 2048)], ids=str)
def test_the_error_is_that_of_torchs_product(shape: tuple[int, int, int]) -> None:
    """Of values with twice as many bits, whose product has exact parts. What is left when they are taken away, the
    largest first, is the error, but for much smaller ones."""
    m, k, n = shape
    (a1, a0), (b1, b0) = ([integers(*size) for _ in range(2)] for size in ((m, k), (k, n)))
    unit = 2.0**HALF_BITS
    a, b = a1 * unit + a0, b1 * unit + b0

    def error(found: torch.Tensor) -> float:
        left = found - a1 @ b1 * unit**2
        left -= (a1 @ b0 + a0 @ b1) * unit
        return float((left - a0 @ b0).norm())

    plan = choose(Problem.of(a, b), installed(0))
    assert plan.family == "double_mma"
    out = torch.full((m, n), float("nan"), dtype=torch.float64, device="cuda")
    ours, torchs = error(compiled(plan, 0)(a, b, out)), error(a @ b)
    assert ours <= 2 * torchs
    assert torchs <= 1e-14 * out.norm().item()
