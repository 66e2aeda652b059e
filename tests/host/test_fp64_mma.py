"""The `fp64_mma` family: its plans, and its machine code."""

import itertools
from collections import Counter

import pytest
import torch
from launched import constants_of
from machine_code import assert_does_not_compile_with, assert_nothing_spills, instructions_of_each, total
from meta_tensors import meta

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.family import FP64
from tilesmith.kernels.mma.tiles import TILES_OF_DOUBLES as TILES
from tilesmith.kernels.mma.tiles import Cut, Tile
from tilesmith.planner import choose, rejections

H200 = KNOWN_GPUS["h200"]
LAYOUTS = ["nn", "nt", "tn", "tt"]


def laid_out(rows: int, columns: int, layout: str, aligned: bool = True) -> torch.Tensor:
    gap = 0 if aligned else 1
    return meta(columns, rows + gap).T[:rows] if layout == "t" else meta(rows, columns + gap)[:, :columns]


def mmas(tile: Tile) -> tuple[int, int]:
    return tile.m // tile.warps_m // 16, tile.n // tile.warps_n // 8


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_small_squares_are_multiplied_as_doubles_on_hopper(size: int) -> None:
    for layout in LAYOUTS:
        a, b = laid_out(size, size, layout[0]), laid_out(size, size, layout[1])
        assert choose(Problem.of(a, b), H200).family == "fp64_mma"


@pytest.mark.parametrize("k", [1, 33, 64, 100, 1000, 20_000, 500_000, 4_000_000])
def test_products_of_few_elements_are_of_doubles_on_hopper(k: int) -> None:
    """There the promise in norm is theirs alone: docs/accuracy.md."""
    for (m, n), layout in itertools.product(itertools.product((1, 2, 5, 9, 33, 99), repeat=2), LAYOUTS):
        if m * n < 100:
            problem = Problem.of(laid_out(m, k, layout[0]), laid_out(k, n, layout[1]))
            assert choose(problem, H200).name.split()[0] in ("fp64_mma", "skinny", "gemv"), (m, k, n, layout)


@pytest.mark.parametrize("shape", [(32768, 32, 32768), (4096, 16, 4096)], ids=str)
def test_short_sums_are_of_doubles_on_hopper(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    assert choose(Problem.of(meta(m, k), meta(k, n)), H200).name == "fp64_mma 64x64x32"


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        (Problem.of(meta(64, 64).double(), meta(64, 64).double()), "is for operands and outputs of float32"),
        (Problem.of(meta(64, 64), meta(64, 64), accuracy="ieee"), "one chain"),
        (Problem.of(meta(64, 0), meta(0, 64)), "nothing to multiply"),
        (Problem.of(meta(0, 64), meta(64, 64)), "nothing to multiply"),
        (Problem.of(meta(2, 1, 4, 1, 8, 8), meta(3, 1, 5, 8, 8)), "3 batch dimensions"),
        (Problem.of(meta(64, 2**24)[:, :64], meta(64, 64)), "32 bits"),
        (Problem.of(meta(2**23, 8), meta(8, 8)), "32 bits"),
    ],
)
def test_what_it_cannot_do_is_said_and_left_to_others(problem: Problem, part: str) -> None:
    assert part in str(FP64.rejects(problem, H200))
    assert choose(problem, H200).family != "fp64_mma"


def test_other_gpus_sum_in_chains() -> None:
    problem = Problem.of(meta(64, 64), meta(64, 64))
    assert FP64.rejects(problem, KNOWN_GPUS["a100"]) == "is for compute capability 9.0"
    assert choose(problem, KNOWN_GPUS["a100"]).family == "simt"
    reasons = {each.candidate: each.reason for each in rejections(choose(problem, H200))}
    assert "no other family" in reasons["simt"]


def test_tiles_that_a_grid_has_no_room_for_are_excluded() -> None:
    problem = Problem.of(meta(2**20, 8), meta(8, 64))
    excluded = {each.candidate for each in FP64.exclusions(problem, H200)}
    assert excluded == {"fp64_mma 16x32x64", "fp64_mma 16x16x128"}
    assert len(list(FP64.candidates(problem, H200))) == len(TILES) - 2


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_divides_evenly_among_its_warps(tile: Tile) -> None:
    mmas_m, mmas_n = mmas(tile)
    assert (mmas_m * 16 * tile.warps_m, mmas_n * 8 * tile.warps_n) == (tile.m, tile.n)
    assert tile.k % (16 * tile.warps_k) == 0
    assert {2 * mmas_m, mmas_n} <= {2, 4}
    assert tile.blocks_per_sm > 1
    assert tile.shared_bytes(4) * tile.blocks_per_sm <= H200.shared_bytes_per_sm - 1024 * tile.blocks_per_sm


ALIGNMENTS = list(itertools.product((True, False), repeat=2))  # of a and b


def plans() -> dict[str, list[Plan]]:
    """Every tile in every layout. Of the alignments every tile and every layout have all, but only half of them
    together; ranks of batches, and ways to store, come in turn."""
    found: dict[str, list[Plan]] = {}
    ranks = itertools.cycle([((), ()), ((3,), (3,)), ((3, 1), (4,)), ((3, 1), (2, 1, 4))])
    gaps = itertools.cycle([0, 0, 1])
    for (i, tile), (j, layout) in itertools.product(enumerate(TILES), enumerate(LAYOUTS)):
        for aligned in ALIGNMENTS[(i + j) % 2 :: 2]:
            a_batch, b_batch = next(ranks)
            a = laid_out(128, 256, layout[0], aligned[0]).expand(*a_batch, 128, 256)
            b = laid_out(256, 128, layout[1], aligned[1]).expand(*b_batch, 256, 128)
            out = meta(*torch.broadcast_shapes(a_batch, b_batch), 128, 128 + next(gaps))[..., :128]
            found.setdefault(f"{tile} {layout}", []).append(FP64.plan(Problem.of(a, b, out=out), H200, Cut(tile)))
    return found


PLANS = plans()


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_the_machine_code_multiplies_doubles_and_spills_nothing(plans: list[Plan]) -> None:
    for plan, found in zip(plans, instructions_of_each([plan.product.kernel for plan in plans]), strict=True):
        assert_multiplies_doubles_and_spills_nothing(plan, found)


def assert_multiplies_doubles_and_spills_nothing(plan: Plan, found: Counter[str]) -> None:
    (stage,) = plan.launches
    assert_nothing_spills(stage)
    c = constants_of(stage.kernel, launch.Constants)
    tile = next(tile for tile in TILES if plan.name == f"fp64_mma {tile}")
    mmas_m, mmas_n = mmas(tile)
    rounds = tile.k // 16 // tile.warps_k
    assert total(found, r"DMMA\.16x8x16") == total(found, r"DMMA.*") == mmas_m * mmas_n * rounds
    if not c.epilogue.any:
        # A value is converted once for each warp that has it.
        assert total(found, r"F2F\.F64\.F32") == (8 * mmas_m + 4 * mmas_n) * rounds
        assert total(found, r"LDG\..*") == 0
    assert total(found, r"(LDL|STL)\b.*") == 0
    assert (total(found, r"LDGSTS\.E\.BYPASS\.128.*") > 0) == (16 in (c.a_copy_bytes, c.b_copy_bytes))
    assert (total(found, r"LDGSTS\.E(\.LTC\w+)?(\.ZFILL)?") > 0) == (4 in (c.a_copy_bytes, c.b_copy_bytes))
    vectors = total(found, r"LDS\.(64|128)")
    reads = sum(g if along else 4 for g, along in ((2 * mmas_m, c.a_along_k), (mmas_n, c.b_along_k))) * rounds
    parts = 0 if tile.warps_k == 1 else tile.warps_k * (4 * mmas_m * mmas_n // tile.warps_k // 2)
    assert vectors == reads + parts
    assert total(found, rf"STG\.E\.{32 * mmas_n}") > 0
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1


@pytest.mark.parametrize("name", ["shared_bytes", "threads"])
def test_a_kernel_with_a_wrong_size_does_not_compile(name: str) -> None:
    assert_does_not_compile_with(next(iter(PLANS.values()))[0].product.kernel, name, 32)
