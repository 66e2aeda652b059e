"""Products that skip zeros: where the split leaves the extents of rows, where the product looks for them, and what
ptxas makes of both."""

import itertools
import struct
from typing import Any

import pytest
import torch
from machine_code import built, complaints

from tilesmith.device import KNOWN_GPUS
from tilesmith.kernels import sm90
from tilesmith.plan import Plan, Stage
from tilesmith.problem import Problem

H200 = KNOWN_GPUS["h200"]
EXTENT_BYTES = 8
CONFIGURATIONS = [
    sm90.Configuration(128, 128, cluster=2),
    sm90.Configuration(128, 192),
    sm90.Configuration(64, 64, cluster=2),
    sm90.Configuration(128, 96, swap=True),
]
SHAPES = [(4096, 4096, 4096), (700, 900, 520), (65, 130, 72), (300, 20000, 400)]


def planned(
    shape: tuple[int, int, int], c: sm90.Configuration, layout: str = "nn", *, skips_zeros: bool = True
) -> Plan:
    m, k, n = shape
    a = torch.empty(m, k, device="meta") if layout[0] == "n" else torch.empty(k, m, device="meta").T
    b = torch.empty(k, n, device="meta") if layout[1] == "n" else torch.empty(n, k, device="meta").T
    return sm90.plan(Problem.of(a, b, skips_zeros=skips_zeros), H200, c)


def constants(stage: Stage) -> dict[str, Any]:
    return dict(stage.kernel.constants)


def offset_at(stage: Stage, position: int) -> int:
    (found,) = [each for each in stage.addresses if each.position == position]
    assert found.buffer == "workspace"
    return found.offset


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("c", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_reads_every_extent_that_the_split_writes(
    shape: tuple[int, int, int], c: sm90.Configuration, layout: str
) -> None:
    plan = planned(shape, c, layout)
    split, product, *_ = plan.stages
    assert constants(split)["finds_extents"]
    used, made = constants(product), constants(split)
    for i, name in enumerate("ab"):
        strips, tasks = struct.unpack_from("<2i", split.arguments, 160 * i + 132)
        rows = struct.unpack_from("<i", split.arguments, 160 * i + 112)[0]
        assert strips == tasks
        assert offset_at(product, 608 + 16 * i) == offset_at(split, 160 * i + 48)
        assert struct.unpack_from("<i", product.arguments, 616 + 16 * i)[0] == strips
        assert used[f"{name}_strip_rows"] == made[f"{name}_rows"]
        assert used[f"{name}_slabs"] == made[f"{name}_slabs"]
        # Rows or columns of tiles, each of which asks for all strips that it touches.
        extent = used["cluster"] * used["tile_m"] if name == "a" else used["tile_n"]
        count = used["extents_m"] if name == "a" else used["extents_n"]
        assert (count - 1) * extent < rows <= count * extent
        strip_rows = used[f"{name}_strip_rows"]
        asked = {
            strip
            for tile in range(count)
            for strip in range(tile * extent // strip_rows, min(-(-(tile + 1) * extent // strip_rows), strips))
        }
        assert asked == set(range(strips))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extents_have_memory_of_their_own(shape: tuple[int, int, int]) -> None:
    plan = planned(shape, CONFIGURATIONS[0])
    split = plan.stages[0]
    made = constants(split)
    extents = []
    for i, name in enumerate("ab"):
        (strips,) = struct.unpack_from("<i", split.arguments, 160 * i + 132)
        first = offset_at(split, 160 * i + 48)
        extents.append((first, first + strips * made[f"{name}_slabs"] * EXTENT_BYTES))
    starts = {first for first, _ in extents}
    addresses = [(each.buffer, each.offset) for stage in plan.stages for each in stage.addresses]
    maps = [(each.buffer, each.offset) for stage in plan.stages for each in stage.tensor_maps]
    others = [offset for buffer, offset in (*addresses, *maps) if buffer == "workspace" and offset not in starts]
    for first, end in extents:
        assert first % EXTENT_BYTES == 0
        assert end <= plan.workspace_bytes
        assert not any(first <= other < end for other in others)
    (_, a_end), (b_first, _) = extents
    assert a_end <= b_first


def test_the_wide_scheme_and_what_cannot_skip_do_everything() -> None:
    skipping = planned(SHAPES[1], CONFIGURATIONS[0])
    assert [constants(stage).get("skips_zeros") for stage in skipping.stages] == [None, True, None, False]
    assert [constants(stage).get("finds_extents") for stage in skipping.stages] == [True, None, False, None]
    for c in (sm90.Configuration(128, 128, splits=2), sm90.Configuration(128, 128, raw=True)):
        assert not any(constants(stage).get("skips_zeros") for stage in planned(SHAPES[1], c).stages)
    batch = Problem.of(*(torch.empty(3, 256, 256, device="meta") for _ in range(2)), skips_zeros=True)
    assert not any(constants(stage).get("skips_zeros") for stage in sm90.plan(batch, H200, CONFIGURATIONS[0]).stages)


def test_other_products_have_the_kernels_and_the_memory_that_they_had() -> None:
    plain = planned(SHAPES[0], CONFIGURATIONS[0], skips_zeros=False)
    assert not constants(plain.stages[1])["skips_zeros"]
    assert plain.workspace_bytes < planned(SHAPES[0], CONFIGURATIONS[0]).workspace_bytes


@pytest.mark.parametrize(("c", "layout"), list(zip(CONFIGURATIONS, ["nn", "nt", "tn", "tt"], strict=True)), ids=str)
def test_the_kernels_do_not_spill(c: sm90.Configuration, layout: str) -> None:
    for stage, _ in zip(planned(SHAPES[0], c, layout).stages, range(2), strict=False):
        _, log = built(stage.kernel)
        assert complaints(log) == []
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log


def test_shared_memory_is_within_its_limit_for_every_number_of_tiles() -> None:
    for m, c in itertools.product((256, 8192, 60_000), CONFIGURATIONS[:2]):
        for stage in planned((m, 256, 1024), c).stages:
            assert stage.kernel.shared_bytes <= H200.shared_bytes_per_block
