"""16-bit products in a warp's registers: in the emulator, of integers, whose sums are exact; and their machine code."""

import pytest
import torch
from emulated import H200, placed
from machine_code import assert_nothing_spills, instructions_of_each, total

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.explain.promises import Promises
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.mma.family import HALF
from tilesmith.kernels.mma.tiles import TILES_OF_HALVES, Cut, Tile

pytestmark = pytest.mark.usefixtures("emulator_cache")


def small_integers(rows: int, columns: int, layout: str, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """By rows or by columns; in capitals with lines that start at odd addresses, or after a 2 at even ones."""
    by_columns, shift = layout[-1] in "tT", (int(layout[0]) if layout[0].isdigit() else int(layout.isupper()))
    rows, columns = (columns, rows) if by_columns else (rows, columns)
    values = torch.randint(-4, 5, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(dtype)
    own = placed(values, (-(-columns // 8) * 8 + shift, 1), shift)
    return own.T if by_columns else own


@pytest.mark.parametrize(
    "layouts", [("n", "n"), ("N", "t"), ("t", "N"), ("2n", "2t"), ("2t", "n"), ("T", "2n")], ids="".join
)
@pytest.mark.parametrize("tile", TILES_OF_HALVES, ids=str)
def test_tiles_and_layouts(tile: Tile, layouts: tuple[str, str]) -> None:
    """Copies of 16, 4 and 2 bytes, and results in lines of any address; with K whole and in parts."""
    dtype = torch.bfloat16 if layouts[0] in ("n", "T") else torch.float16
    for (m, k, n), seed in (((70, 600, 75), None), ((33, 37, 66), 1), ((1, 1, 1), None), ((16, 130, 64), 2)):
        a, b = small_integers(m, k, layouts[0], dtype), small_integers(k, n, layouts[1], dtype, seed=1)
        for split_k in (1, 2) if k > 2 * tile.k_round else (1,):
            out = run(HALF.plan(Problem.of(a, b), H200, Cut(tile, split_k)), a, b, seed=seed)
            torch.testing.assert_close(out, (a.double() @ b.double()).to(dtype), rtol=0, atol=0)


def test_batches_outputs_and_epilogues() -> None:
    a = torch.stack([small_integers(20, 33, "n", torch.bfloat16, seed=i) for i in range(6)]).reshape(3, 2, 20, 33)
    b = a.mT.contiguous()[0]
    tile = TILES_OF_HALVES[0]
    exact = a.double() @ b.double()
    wanted = exact.bfloat16()
    wide = torch.empty(3, 2, 20, 40, dtype=a.dtype)
    for out in (None, wide[..., 3:23], wide[..., ::2]):
        found = run(HALF.plan(Problem.of(a, b, out=out), H200, Cut(tile)), a, b, out=out)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    bias = small_integers(1, 20, "n", a.dtype)[0]
    epilogue = Epilogue(bias=bias, activation="relu", residual=wanted)
    plan = HALF.plan(Problem.of(a, b, epilogue=epilogue), H200, Cut(tile))
    found = run(plan, a, b, epilogue=epilogue)
    with_epilogue = torch.relu(exact + bias.double()) + wanted.double()
    torch.testing.assert_close(found, with_epilogue.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("layouts", [("n", "n"), ("N", "T"), ("2n", "2t"), ("T", "N"), ("2t", "n")], ids="".join)
@pytest.mark.parametrize("tile", TILES_OF_HALVES, ids=str)
def test_the_kernels_do_not_spill(tile: Tile, layouts: tuple[str, str]) -> None:
    a, b = (small_integers(128, 128, layout, torch.bfloat16) for layout in layouts)
    launch = HALF.plan(Problem.of(a, b), H200, Cut(tile)).product
    assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    of_a_step = tile.m * tile.n * tile.k // (tile.threads // 32) // (16 * 8 * 16)
    assert total(found, r"HMMA\.16816\.F32\.BF16") == of_a_step


def test_what_it_cannot_do_is_left_to_others() -> None:
    halves = [torch.empty(64, 64, dtype=dtype, device="meta") for dtype in (torch.float16, torch.bfloat16)]
    for problem in (
        Problem.of(halves[0].float(), halves[0].float()),
        Problem.of(halves[0], halves[0], out_dtype=torch.float32),
        Problem.of(halves[0].double(), halves[0].double()),
    ):
        assert "is for operands and outputs of float16 or bfloat16" in str(HALF.rejects(problem, H200))
    assert "compute capability 9.0" in str(HALF.rejects(Problem.of(halves[1], halves[1]), KNOWN_GPUS["a100"]))
    assert HALF.rejects(Problem.of(halves[1], halves[1]), H200) is None


def test_rows_are_independent_where_no_sums_of_parts_of_k_are_added() -> None:
    a = torch.empty(64, 512, dtype=torch.bfloat16, device="meta")
    problem = Problem.of(a, a.T)
    whole, by_warps = (
        next(tile for tile in TILES_OF_HALVES if (tile.warps_k > 1) == divided) for divided in (False, True)
    )
    assert Promises.of(HALF.plan(problem, H200, Cut(whole))).independent_of_other_rows
    assert Promises.of(hopper.plan(problem, H200, hopper.Configuration(64, 64))).independent_of_other_rows
    divided = Promises.of(HALF.plan(problem, H200, Cut(by_warps)))
    assert not divided.independent_of_other_rows
    assert "2 sets of warps divide K" in divided.sums
