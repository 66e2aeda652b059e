"""float32 as TF32 in a warp's registers: in the emulator, against operands that are rounded before."""

import math

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, normal, placed
from machine_code import assert_nothing_spills, instructions_of_each, total
from tf32_products import assert_right, laid_out, rounded

from tilesmith import emulator
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.mma.family import TF32
from tilesmith.kernels.mma.tiles import TILES_OF_TF32, Cut, Tile

pytestmark = pytest.mark.usefixtures("emulator_cache")


def planned(a: torch.Tensor, b: torch.Tensor, tile: Tile, split_k: int = 1, out: torch.Tensor | None = None) -> Plan:
    problem = Problem.of(a, b, out=out, accuracy="tf32")
    assert TF32.rejects(problem, H200) is None
    return TF32.plan(problem, H200, Cut(tile, split_k))


@pytest.mark.parametrize(
    ("tile", "layout"), zip(TILES_OF_TF32 * 2, ("nn", "Nt", "tN", "TT", "tn", "NT"), strict=True), ids=str
)
def test_tiles_and_layouts(tile: Tile, layout: str) -> None:
    a, b = laid_out(normal(70, 100), layout[0]), laid_out(normal(100, 75, seed=1), layout[1])
    assert_right(planned(a, b, tile), a, b)


@pytest.mark.parametrize("layout", ["nn", "NT", "tN", "TT"])
@pytest.mark.parametrize("tile", TILES_OF_TF32, ids=str)
def test_the_kernels_do_not_spill(tile: Tile, layout: str) -> None:
    a, b = laid_out(normal(128, 64), layout[0]), laid_out(normal(64, 128), layout[1])
    launch = planned(a, b, tile).product
    assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    assert total(found, r"F2FP\.TF32.*") > 0  # in other modes a conversion is three instructions
    assert total(found, r"HMMA\.1688\.F32\.TF32") > 0


def test_batches_and_parts_of_k() -> None:
    a, b = normal(3, 2, 20, 300), normal(2, 300, 24, seed=1)
    for x, y in ((a, b), (a, b[0]), (a[0], b.mT.contiguous().mT), (a[:, :1], b)):
        assert_right(planned(x, y, TF32.tiles[2], split_k=2), x, y)


def test_nothing_but_the_result_is_written() -> None:
    a, b = placed(normal(40, 70), (71, 1)), placed(normal(70, 30, seed=1), (1, 75))
    out = empty((40, 30), (37, 1), torch.float32)
    assert_right(planned(a, b, TF32.tiles[2], out=out), a, b, out)
    assert_nothing_else_written(out)


def test_infinities_and_nans_are_where_they_belong() -> None:
    a, b = normal(20, 40), normal(40, 24, seed=1)
    a[0, 1], a[3, 0], b[2, 0], b[0, 5] = math.inf, math.nan, -math.inf, 0.0
    assert_right(planned(a, b, TF32.tiles[2]), a, b)


def test_a_long_sum_of_positive_numbers_is_not_cut_off() -> None:
    a, b = normal(16, 20_000).abs(), normal(20_000, 16, seed=1).abs()
    a, b = rounded(a).float(), rounded(b).float()
    result = emulator.run(planned(a, b, TF32.tiles[2]), a, b).double()
    assert ((result / (a.double() @ b.double())) - 1).abs().max() < 1e-6
