"""Products that skip zeros: where the split leaves the extents of rows, where the product looks for them, and what
ptxas makes of both."""

import itertools

import pytest
import torch
from launched import constants_of, parameters_of, places_of
from machine_code import assert_nothing_spills
from meta_tensors import laid_out

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp32_split.launch import Constants, Parameters
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper.constants import TermConstants
from tilesmith.planner import choose

H200 = KNOWN_GPUS["h200"]
EXTENT_BYTES = 8
CONFIGURATIONS = [
    hopper.Configuration(128, 128, cluster=2),
    hopper.Configuration(128, 192, cluster=2),
    hopper.Configuration(64, 64),
    hopper.Configuration(128, 128),
]
SHAPES = [(4096, 4096, 4096), (700, 900, 520), (65, 130, 72), (300, 20000, 400)]


def planned(
    shape: tuple[int, int, int], c: hopper.Configuration, layout: str = "nn", *, skips_zeros: bool = True
) -> Plan:
    m, k, n = shape
    a, b = laid_out(m, k, layout=layout[0]), laid_out(k, n, layout=layout[1])
    return hopper.plan(Problem.of(a, b, skips_zeros=skips_zeros), H200, c)


def skips_zeros(plan: Plan) -> list[bool]:
    """Whether each launch that multiplies does, if it can at all."""
    found = [launch.kernel.constants for launch in plan.launches if launch.multiplies]
    return [isinstance(c, TermConstants) and c.skips_zeros for c in found]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extents_have_memory_of_their_own(shape: tuple[int, int, int]) -> None:
    plan = planned(shape, CONFIGURATIONS[0])
    extents = []
    for operand in parameters_of(plan.launches[0], Parameters).operands:
        assert operand.extents is not None and operand.extents.buffer == "workspace"
        first = operand.extents.offset
        extents.append((first, first + operand.row_blocks * operand.k_chunks * EXTENT_BYTES))
    starts = {first for first, _ in extents}
    places = [each for launch in plan.launches for each in places_of(launch) if each.buffer == "workspace"]
    others = [each.offset for each in places if each.offset not in starts]
    for first, end in extents:
        assert first % EXTENT_BYTES == 0
        assert end <= plan.workspace_bytes
        assert not any(first <= other < end for other in others)
    (_, a_end), (b_first, _) = extents
    assert a_end <= b_first


def test_full_range_terms_and_what_cannot_skip_do_everything() -> None:
    skipping = planned(SHAPES[1], CONFIGURATIONS[0])
    assert skips_zeros(skipping) == [True, False]
    assert [constants_of(each.kernel, Constants).finds_extents for each in skipping.launches[::2]] == [True, False]
    for c in (hopper.Configuration(128, 128, split_k=2), hopper.Configuration(128, 128, rs=True)):
        assert skips_zeros(planned(SHAPES[1], c)) == [False, False]
    batch = Problem.of(*(torch.empty(3, 256, 256, device="meta") for _ in range(2)), skips_zeros=True)
    assert skips_zeros(hopper.plan(batch, H200, CONFIGURATIONS[0])) == [False, False]


@pytest.mark.parametrize("size", [1000, 2048, 4000, 4096, 5000, 20000])
def test_of_all_tiles_those_are_chosen_that_skip(size: int) -> None:
    """Also where another would be faster if it multiplied everything."""
    square = torch.empty(size, size, device="meta")
    for a, b in itertools.product((square, square.T), repeat=2):
        assert skips_zeros(choose(Problem.of(a, b, skips_zeros=True), H200)) == [True, False]


def test_other_products_have_the_kernels_and_the_memory_that_they_had() -> None:
    plain = planned(SHAPES[0], CONFIGURATIONS[0], skips_zeros=False)
    assert skips_zeros(plain) == [False, False]
    assert plain.workspace_bytes < planned(SHAPES[0], CONFIGURATIONS[0]).workspace_bytes


@pytest.mark.parametrize(("c", "layout"), list(zip(CONFIGURATIONS, ["nn", "nt", "tn", "tt"], strict=True)), ids=str)
def test_the_kernels_do_not_spill(c: hopper.Configuration, layout: str) -> None:
    for stage, _ in zip(planned(SHAPES[0], c, layout).launches, range(2), strict=False):
        assert_nothing_spills(stage)


def test_shared_memory_is_within_its_limit_for_every_number_of_tiles() -> None:
    for m, c in itertools.product((256, 8192, 60_000), CONFIGURATIONS[:2]):
        for stage in planned((m, 256, 1024), c).launches:
            assert stage.kernel.shared_bytes <= H200.shared_bytes_per_block
