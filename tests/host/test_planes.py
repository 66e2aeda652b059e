"""float32 products on tensor cores: the launches that split operands into planes and multiply these, what they keep in
the workspace, and what ptxas makes of them. What the values become is the business of the tests of the promise."""

import itertools
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from machine_code import (
    built,
    complaints,
    disassembled,
    instructions_in,
    instructions_of_each,
    overwritten_operands,
    products_of_registers,
    total,
)
from split_model import sampled_ks

from tilesmith import CompilationError
from tilesmith.accuracy import Accuracy
from tilesmith.bench import suites
from tilesmith.device import KNOWN_GPUS, Device, named
from tilesmith.jit import compiler, source
from tilesmith.kernels import exact, sm90
from tilesmith.kernels.result import Store
from tilesmith.plan import Kernel, Plan, Stage, TensorMap
from tilesmith.planner import choose
from tilesmith.problem import Problem

H200 = named("h200")
DEVICES = {
    "h200": H200,
    "h100": named("h100"),
    "78 SMs": replace(H200, sm_count=78),
    "7 SMs": replace(H200, sm_count=7),  # fewer blocks than K may have slabs
    "100 KB": replace(H200, shared_bytes_per_block=100 * 1000),
}
LAYOUTS = ["nn", "nt", "tn", "tt"]
ACCURACIES: list[Accuracy] = ["fp32", "tf32"]
TILE_K = 64
THREADS = 256
VECTOR = 4
AT_ONCE = 4  # steps that a thread reads together
MOST_SLABS = 128
CENSUS_BYTES = 16
CENSUS_ROWS = 16  # of which a raw A has a census
LEAST_K = 33  # for planes that keep what the promise of fp32 asks for


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device="meta")


def laid_out(*shape: int, layout: str) -> torch.Tensor:
    """By rows ("n") or by columns ("t")."""
    return meta(*shape) if layout == "n" else meta(*shape[:-2], shape[-1], shape[-2]).mT


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    return meta(1).as_strided(tuple(shape), tuple(strides), offset)


def constants(kernel: Kernel) -> dict[str, Any]:
    return dict(kernel.constants)


def entries(plan: Plan) -> list[str]:
    return [stage.kernel.entry for stage in plan.stages]


def planned(problem: Problem, configuration: sm90.Configuration, device: Device = H200) -> Plan:
    assert sm90.rejects(problem, device) is None
    assert sm90.unsuited(problem, device, configuration) is None
    return sm90.plan(problem, device, configuration)


# Batches, rows and columns that end within a strip, slabs of K, and less K than a step.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 1), (1, 1)),
    ((4096, 4096), (4096, 4096)),
    ((8205, 2949), (2949, 5921)),
    ((32768, 64), (64, 32768)),
    ((256, 524288), (524288, 256)),
    ((1, 1048576), (1048576, 70)),
    ((17, 8192), (8192, 8192)),
    ((130, 70), (70, 24)),
    ((300, 5), (5, 500)),
    ((7000, 8, 16), (7000, 16, 8)),
    ((7, 1, 33, 65), (1, 9, 65, 17)),
    ((2, 1, 3, 64, 640), (5, 1, 640, 72)),
    ((3, 100, 6000), (6000, 40)),
]


def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Operands of every shape in all layouts, and others with strides of all kinds."""
    for (a, b), layout in itertools.product(SHAPES, LAYOUTS):
        yield laid_out(*a, layout=layout[0]), laid_out(*b, layout=layout[1])
    for strides, offset in [((301, 1), 0), ((304, 1), 1), ((1, 203), 3), ((600, 2), 0), ((3, 700), 0), ((2, 400), 1)]:
        matrix = strided((200, 300), strides, offset)
        yield matrix, meta(300, 100)
        yield meta(100, 200), matrix
        yield matrix, matrix.T
    yield meta(200, 300).expand(3, 200, 300), meta(3, 300, 100)
    yield strided((3, 2, 70, 90), (0, 6301, 90, 1)), strided((3, 2, 90, 50), (4501, 0, 1, 90))


@cache
def every_plan(device: Device = H200) -> list[Plan]:
    """One of each kind that the family offers: with and without splits, clusters, the transposed product, and planes of
    A that a launch of its own makes."""
    plans = []
    for (a, b), accuracy in itertools.product(pairs(), ACCURACIES):
        problem = Problem.of(a, b, accuracy=accuracy)
        if accuracy == "fp32" and problem.k < LEAST_K:
            assert "so short" in (sm90.rejects(problem, device) or "")
            continue
        assert sm90.rejects(problem, device) is None
        kinds = {}
        for c in sm90.configurations(problem, device):
            if sm90.unsuited(problem, device, c) is None:
                kinds[c.swap, c.splits, c.cluster, c.tile_m, c.tile_n > 128, c.raw] = c
        assert kinds
        plans += [sm90.plan(problem, device, c) for c in kinds.values()]
    return plans


def is_raw(plan: Plan) -> bool:
    return plan.name.endswith(" raw")


def raw_plans(device: Device = H200) -> Iterator[Plan]:
    return filter(is_raw, every_plan(device))


# What the kernels are told.


class Operand(NamedTuple):
    """struct Operand of kernels/split/types.cuh, and the constants of its strip. Addresses are offsets in the
    workspace."""

    buffer: str  # that is split
    planes: int
    factors: int
    wide_exponents: int
    slab_exponents: int
    censuses: int
    extents: int
    row_stride: int
    k_stride: int
    batch_stride: tuple[int, ...]
    pitch: int
    matrix_pitch: int
    rows: int
    depth: int
    plane_depth: int
    slab_depth: int
    slab_pitch: int
    strips: int
    tasks: int
    scale_pitch: int
    first_block: int
    batch_size: tuple[int, ...]
    mn_major: bool
    access: int
    strip_rows: int
    slabs: int
    stored: int  # planes
    batch_rank: int
    raw_parts: int  # of K, for each of which the product counts; 0 if the split does
    blocks: int  # whose censuses there are; or groups of rows

    @property
    def matrices(self) -> int:
        return math.prod(self.batch_size)

    @classmethod
    def both(cls, stage: Stage) -> "list[Operand]":
        assert stage.kernel.entry == "split"
        c = constants(stage.kernel)
        assert c["operands"] == 2
        counted = struct.unpack_from("<2i", stage.arguments, 328)
        raw_parts = (c["a_parts"] if c["a_is_raw"] else 0, 0)
        found = []
        for i, (name, position) in enumerate((("a", 0), ("b", 160))):
            source, *targets = (address_at(stage, position + 8 * at) for at in range(7))
            assert source[0] in ("a", "b")
            assert source[1] == 0
            assert {buffer for buffer, _ in targets} == {"workspace"}
            f = struct.unpack_from("<56x7q12i", stage.arguments, position)
            own = (c[f"{name}_mn_major"], c[f"{name}_access"], c[f"{name}_rows"], c[f"{name}_slabs"])
            found.append(
                cls._make(
                    [
                        source[0],
                        *(offset for _, offset in targets),
                        *(*f[:2], f[2:5], *f[5:16], f[16:19]),
                        *(*own, c[f"{name}_planes"] + c["wide"], c["batch_rank"], raw_parts[i], counted[i]),
                    ]
                )
            )
        return found


class Scales(NamedTuple):
    """struct RowScales of scale.cuh."""

    offset: int
    pitch: int
    matrices: tuple[int, ...]


class Product(NamedTuple):
    """struct Parameters of kernels/sm90/types.cuh: what there is for planes."""

    tiles_m: int
    tiles_n: int
    batches: int
    batch_size: tuple[int, ...]
    a_moves: tuple[int, ...]
    b_moves: tuple[int, ...]
    m: int
    depth: int
    plane_depth: int
    scales: tuple[Scales, Scales]
    censuses: tuple[tuple[str, int], ...]  # of A and of B: buffer and offset
    census_counts: tuple[int, ...]
    verdict: int
    split_exponents: int | None  # offset, if A is raw
    split_pitch: int

    @classmethod
    def of(cls, stage: Stage) -> "Product":
        assert stage.kernel.entry == "sm90"
        f = struct.unpack_from("<17i", stage.arguments, 432)
        m, depth, plane_depth = struct.unpack_from("<3i", stage.arguments, 500)
        scales = []
        for position in (512, 536):
            pitch, *matrices = struct.unpack_from("<8x4i", stage.arguments, position)
            scales.append(Scales(address_at(stage, position)[1], pitch, tuple(matrices)))
        return cls(
            *(f[0], f[1], f[3], f[8:11], f[11:14], f[14:17], m, depth, plane_depth),
            (scales[0], scales[1]),
            (address_at(stage, 560), address_at(stage, 568)),
            struct.unpack_from("<2i", stage.arguments, 584),
            address_at(stage, 576)[1],
            address_at(stage, 592)[1] if constants(stage.kernel)["a_is_raw"] else None,
            struct.unpack_from("<i", stage.arguments, 600)[0],
        )


def address_at(stage: Stage, position: int) -> tuple[str, int]:
    assert stage.arguments[position : position + 8] == bytes(8)
    (found,) = (each for each in stage.addresses if each.position == position)
    return found.buffer, found.offset


def offset_checks(struct_name: str, size: int, offsets: dict[str, int]) -> str:
    """Makes a translation unit assert where a struct has its fields."""
    name = f"tilesmith::{struct_name}"
    fields = (f"static_assert(__INTADDR__(&(({name}*)0)->{field}) == {at});" for field, at in offsets.items())
    return "\n".join([f"static_assert(sizeof({name}) == {size});", *fields])


OPERAND_FIELDS = {
    "from": 0,
    "to": 8,
    "factors": 16,
    "wide_exponents": 24,
    "slab_exponents": 32,
    "censuses": 40,
    "extents": 48,
    "row_stride": 56,
    "k_stride": 64,
    "batch_stride": 72,
    "pitch": 96,
    "matrix_pitch": 104,
    "rows": 112,
    "depth": 116,
    "plane_depth": 120,
    "slab_depth": 124,
    "slab_pitch": 128,
    "strips": 132,
    "tasks": 136,
    "scale_pitch": 140,
    "first_block": 144,
    "batch_size": 148,
}
SPLIT_FIELDS = {"operands[0]": 0, "operands[1]": 160, "verdict": 320, "row_groups": 328, "b_census_count": 332}
PRODUCT_FIELDS = {  # those of 16-bit products are in test_sm90_plan.py
    "a_scales.first": 512,
    "a_scales.pitch": 520,
    "a_scales.matrices": 524,
    "b_scales.first": 536,
    "b_scales.pitch": 544,
    "b_scales.matrices": 548,
    "a_censuses": 560,
    "b_censuses": 568,
    "verdict": 576,
    "a_census_count": 584,
    "b_census_count": 588,
    "split_exponents": 592,
    "split_pitch": 600,
    "a_extents.found": 608,
    "a_extents.strips": 616,
    "b_extents.found": 624,
    "b_extents.strips": 632,
}


@pytest.mark.parametrize("raw", [False, True], ids=["planes", "raw"])
@pytest.mark.parametrize("wide", [False, True])
def test_the_kernels_have_their_fields_where_the_arguments_are(wide: bool, raw: bool) -> None:
    """The offsets that the structs of this file decode are those of the CUDA sources."""
    plan = planned(Problem.of(meta(65, 132), meta(132, 8)), sm90.Configuration(64, 16, raw=raw))
    split, product = plan.stages[2 * wide : 2 * wide + 2]
    assert (len(split.arguments), len(product.arguments)) == (336, 640)
    checks = offset_checks("Operand", 160, OPERAND_FIELDS) + offset_checks("Parameters", 336, SPLIT_FIELDS)
    compiler.compile(source.render(split.kernel) + checks, "sm_90a")
    checks = offset_checks("Parameters", 640, PRODUCT_FIELDS) + offset_checks("Census", 16, {"least_large": 0})
    compiler.compile(source.render(product.kernel) + checks + offset_checks("Verdict", 4, {}), "sm_90a")


def test_a_split_with_wrong_arguments_does_not_compile() -> None:
    kernel = planned(Problem.of(meta(64, 64), meta(64, 64)), sm90.Configuration(64, 64)).stages[0].kernel
    text = source.render(kernel)
    wrong = text.replace("parameter_bytes = 336;", "parameter_bytes = 344;")
    assert wrong != text
    with pytest.raises(CompilationError, match="static assertion failed"):
        compiler.compile(wrong, "sm_90a")


def test_the_split_is_told_where_operands_lie_and_where_their_planes_go() -> None:
    a, b = strided((3, 300, 70), (22501, 75, 1)), meta(70, 1501)
    plan = planned(Problem.of(a, b), sm90.Configuration(64, 64))
    x, y = Operand.both(plan.stages[0])
    assert (x.buffer, x.row_stride, x.k_stride, x.batch_stride) == ("a", 75, 1, (22501, 0, 0))
    assert (x.rows, x.depth, x.plane_depth, x.batch_size) == (300, 70, 128, (3, 1, 1))
    assert (x.mn_major, x.pitch, x.matrix_pitch) == (False, 256, 300 * 256)
    assert (y.buffer, y.row_stride, y.k_stride, y.batch_stride) == ("b", 1, 1501, (0, 0, 0))
    assert (y.rows, y.depth, y.plane_depth, y.batch_size) == (1501, 70, 128, (1, 1, 1))
    assert (y.mn_major, y.pitch, y.matrix_pitch) == (True, 1536, 256 * 1536)
    swapped = planned(Problem.of(a, b), sm90.Configuration(64, 64, swap=True))
    assert [each.buffer for each in Operand.both(swapped.stages[0])] == ["b", "a"]


# The plans.


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_planes_are_made_and_multiplied_and_then_once_more_for_other_values(accuracy: Accuracy) -> None:
    problem = Problem.of(meta(512, 1024), meta(1024, 512), accuracy=accuracy)
    plan = planned(problem, sm90.Configuration(128, 128, cluster=2))
    assert entries(plan) == ["split", "sm90", "split", "sm90"]
    assert plan.product is plan.stages[1]
    split = planned(problem, sm90.Configuration(128, 128, splits=2))
    assert entries(split) == ["split", "sm90", "split", "sm90", "reduce"]
    assert split.splits == 2
    apart = Problem.of(meta(512, 1024), meta(1024, 512), out=meta(512, 1024)[:, ::2], accuracy=accuracy)
    assert entries(planned(apart, sm90.Configuration(128, 128))) == ["split", "sm90", "split", "sm90", "reduce"]


@pytest.mark.parametrize(("accuracy", "ordinary", "wide"), [("fp32", 2, 3), ("tf32", 1, 2)])
def test_each_pair_of_launches_knows_its_planes_and_when_it_runs(accuracy: Accuracy, ordinary: int, wide: int) -> None:
    """The first split takes the census, the product after it reads it; wide planes are left alone unless it says so."""
    seen = set()
    for plan in every_plan():
        if plan.problem.accuracy != accuracy:
            continue
        stages = plan.stages[:4]
        assert entries(plan) == ["split", "sm90", "split", "sm90"] + ["reduce"] * (len(plan.stages) - 4)
        splits, products = ([constants(stage.kernel) for stage in stages[i::2]] for i in (0, 1))
        assert [c["wide"] for c in splits] == [False, True]
        for name in ("a_planes", "b_planes"):
            assert [c[name] for c in splits] == [c[name] for c in products] == [ordinary, wide]
        assert [c["planes"] for c in products] == [ordinary, wide]
        raw = is_raw(plan)
        # A raw A has been counted by the first product alone, which therefore cannot ask.
        assert [c["runs"] for c in products] == ([0, 2] if raw else [1, 2])
        assert [c["scale"] for c in products] == [1, 2]
        widest = sm90._WIDEST_OF_WIDE_RAW if raw else sm90._WIDEST_OF_WIDE
        assert products[1]["tile_n"] == min(products[0]["tile_n"], widest)
        assert not products[1]["b_stays"]
        assert [c["a_is_raw"] for c in (*splits, *products)] == [raw] * 4
        for c in splits:
            assert c["a_parts"] == (plan.splits if raw else c["a_slabs"])
        for c in products:
            assert c["b_slabs"] == splits[0]["b_slabs"]
            assert raw or c["a_slabs"] == splits[0]["a_slabs"]
        for stage, dtype in zip(stages[1::2], (torch.float16, torch.bfloat16), strict=True):
            assert stage.kernel.wgmma is not None
            c = constants(stage.kernel)
            assert (stage.kernel.wgmma.n, stage.kernel.wgmma.dtype) == (c["tile_n"], dtype)
            assert stage.kernel.wgmma.a_in_registers == raw
            a_map, b_map = stage.tensor_maps[:2]
            assert (a_map.dtype, b_map.dtype) == (torch.float32 if raw else dtype, dtype)
            own = "b" if "transposed" in plan.name else "a"
            assert (a_map.buffer, b_map.buffer) == (own if raw else "workspace", "workspace")
            assert Product.of(stage).depth == plan.problem.k
            assert Product.of(stage).m == (plan.problem.n if "transposed" in plan.name else plan.problem.m)
        seen.add((len(plan.stages), raw))
    assert seen == set(itertools.product((4, 5), (False, True) if accuracy == "fp32" else (False,)))


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_plan_is_a_legal_launch(device: Device) -> None:
    seen = set()
    for plan in every_plan(device):
        seen.add(is_raw(plan))
        for stage in plan.stages:
            c = constants(stage.kernel)
            assert stage.awaits_predecessor
            assert c["parameter_bytes"] == len(stage.arguments) <= 4096
            assert stage.grid[0] >= 1
            assert stage.grid[1:] == (1, 1)
            if stage.kernel.entry == "split":
                assert stage.threads == THREADS
                slabs = max(c["a_slabs"], c["b_slabs"])
                # The blocks are as many as for an A that is split, so that B has the same slabs and censuses.
                most = max(slabs, MOST_SLABS if c["a_is_raw"] else 0)
                assert stage.grid[0] <= max(3 * device.sm_count, most)
                assert stage.grid[0] % slabs == 0
                assert stage.kernel.shared_bytes == 0
            if stage.kernel.entry == "sm90":
                # Fewer stages than a step has planes, and its consumers would wait forever. If A is raw, a stage has a
                # whole step, and the next one is split while the products of one run.
                assert c["stages"] >= (2 if c["a_is_raw"] else max(c["planes"], 2))
                assert c["shared_bytes"] == stage.kernel.shared_bytes <= device.shared_bytes_per_block
                assert c["cluster"] == stage.cluster <= stage.grid[0] <= device.sm_count
                if c["planes"] > 1 and plan.problem.k > TILE_K:
                    assert c["tile_n"] <= c["widest_promoted"]
                assert c["tile_n"] <= c["b_extent"] < c["tile_n"] + TILE_K
                if c["b_mn_major"] and c["planes"] > 1 and c["tile_n"] > TILE_K:
                    assert c["b_extent"] % TILE_K == 0
                consumers = stage.threads // 128 - 1
                assert consumers == c["tile_m"] // 64
                registers = 128 * (c["producer_registers"] + consumers * c["consumer_registers"])
                assert registers <= device.registers_per_sm
    assert seen == {False, True}


# The workspace.


@dataclass(frozen=True)
class Region:
    """Bytes of the workspace."""

    name: str
    first: int
    end: int

    @classmethod
    def of_map(cls, tensor_map: TensorMap) -> "Region":
        size = tensor_map.dtype.itemsize
        reach = sum((n - 1) * s for n, s in zip(tensor_map.sizes, (size, *tensor_map.strides), strict=True))
        return cls("box", tensor_map.offset, tensor_map.offset + reach + size)

    def holds(self, other: "Region") -> bool:
        return self.first <= other.first and other.end <= self.end


def planes_of(operands: list[Operand]) -> list[Region]:
    """A raw operand has none."""
    return [
        Region(f"planes of {o.buffer}", o.planes, o.planes + 2 * o.matrices * o.matrix_pitch)
        for o in operands
        if not o.raw_parts
    ]


def scales_of(o: Operand) -> list[Region]:
    """With one slab, its exponents are those of the rows, and there is no need to keep them twice. A raw operand has
    them for every part that the product counts."""
    numbers = 4 * o.matrices * o.scale_pitch
    slabs = o.raw_parts or o.slabs
    regions = [
        Region(f"factors of {o.buffer}", o.factors, o.factors + numbers),
        Region(f"exponents of {o.buffer}", o.wide_exponents, o.wide_exponents + numbers),
    ]
    if slabs == 1:
        assert o.slab_exponents == o.wide_exponents
        return regions
    assert 4 * o.slab_pitch >= numbers
    end = o.slab_exponents + 4 * (slabs - 1) * o.slab_pitch + numbers
    return [*regions, Region(f"exponents of slabs of {o.buffer}", o.slab_exponents, end)]


def test_what_is_alive_at_the_same_time_has_its_own_part_of_the_workspace() -> None:
    """Planes for ordinary values and wide ones are never both needed, and may share memory; nothing else may."""
    seen = set()
    for plan in every_plan():
        split, product, wide_split, wide_product, *last = plan.stages
        ordinary, wide = Operand.both(split), Operand.both(wide_split)
        kept = [region for each in ordinary for region in scales_of(each)]
        assert kept == [region for each in wide for region in scales_of(each)]
        _, verdict = address_at(split, 320)
        a, b = ordinary
        assert b.censuses + split.grid[0] * CENSUS_BYTES <= verdict
        if a.raw_parts:
            # What the first product counts is there until the wide split has read it.
            end = a.censuses + a.blocks * a.raw_parts * CENSUS_BYTES
            kept.append(Region("censuses of rows", a.censuses, end))
            kept.append(Region("censuses", b.censuses, verdict + 4))
        else:
            assert a.censuses + split.grid[0] * CENSUS_BYTES <= b.censuses
            kept.append(Region("censuses", a.censuses, verdict + 4))
        if last:
            reduced = struct.unpack("<16x8q5i4x", last[0].arguments)
            vectors, splits = reduced[6], reduced[9]
            offset = last[0].addresses[0].offset
            kept.append(Region("partial products", offset, offset + splits * vectors * 16))
            for stage in (product, wide_product):
                assert stage.tensor_maps[2].offset == offset
                assert kept[-1].holds(Region.of_map(stage.tensor_maps[2]))
        for operands in (ordinary, wide):
            regions = sorted([*kept, *planes_of(operands)], key=lambda region: region.first)
            assert all(region.first % 256 == 0 for region in regions)
            for before, after in itertools.pairwise(regions):
                assert before.end <= after.first, (before, after)
            assert regions[0].first == 0
            assert regions[-1].end <= plan.workspace_bytes
            seen |= {region.name for region in regions}
        ends = [region.end for operands in (ordinary, wide) for region in planes_of(operands)]
        assert plan.workspace_bytes < max(ends) + 256
    assert len(seen) == 2 * 4 + 2 + 1


def test_products_find_planes_scales_and_censuses_where_the_split_left_them() -> None:
    for plan in every_plan():
        for split, stage in (plan.stages[:2], plan.stages[2:4]):
            operands, product, c = Operand.both(split), Product.of(stage), constants(stage.kernel)
            assert product.verdict == address_at(split, 320)[1]
            # The censuses are those of the ordinary split, by each of its blocks; of a raw A, those of the product.
            assert product.censuses == tuple(("workspace", each.censuses) for each in operands)
            assert product.census_counts == tuple(each.blocks for each in operands)
            assert {o.blocks for o in operands if not o.raw_parts} == {plan.stages[0].grid[0]}
            assert split.grid[0] == plan.stages[0].grid[0]
            reach = (product.tiles_m * c["cluster"] * c["tile_m"], product.tiles_n * c["tile_n"])
            for o, scales, tensor_map, rows, major in zip(
                *(operands, product.scales, stage.tensor_maps[:2], reach, (c["a_mn_major"], c["b_mn_major"])),
                strict=True,
            ):
                assert scales.offset == (o.wide_exponents if c["scale"] == 2 else o.factors)
                assert scales.pitch == o.scale_pitch
                assert o.rows <= rows <= o.scale_pitch  # what a tile asks for past the last row is still ours
                if o.raw_parts:
                    continue  # see the tests of raw operands
                assert (o.mn_major, o.plane_depth) == (major, product.plane_depth)
                assert tensor_map.offset == o.planes
                depth = o.stored * o.plane_depth
                assert tensor_map.sizes[:2] == ((o.rows, depth) if o.mn_major else (depth, o.rows))
                assert tensor_map.strides[0] == o.pitch * 2
                assert o.matrix_pitch == o.pitch * tensor_map.sizes[1]
                (region,) = (each for each in planes_of(operands) if each.name == f"planes of {o.buffer}")
                assert region.holds(Region.of_map(tensor_map))


def test_every_index_of_a_batch_has_the_planes_and_the_scales_of_its_own_matrix() -> None:
    """A raw operand is read where it lies."""
    for plan in every_plan():
        batch = plan.problem.batch[::-1]
        if math.prod(batch) > 100 or not batch:
            continue
        for split, stage in (plan.stages[:2], plan.stages[2:4]):
            product = Product.of(stage)
            assert product.batch_size[: len(batch)] == batch
            moves = (product.a_moves, product.b_moves)
            for o, scales, tensor_map, moving in zip(
                *(Operand.both(split), product.scales, stage.tensor_maps[:2], moves), strict=True
            ):
                matrix = plan.problem.a if o.buffer == "a" else plan.problem.b
                assert o.batch_rank == len(batch)
                for index in itertools.product(*map(range, batch)):
                    number = sum(x * step for x, step in zip(index, scales.matrices, strict=False))
                    assert 0 <= number < o.matrices
                    there = sum(
                        x * moves * stride
                        for x, moves, stride in zip(index, moving, tensor_map.strides[1:], strict=False)
                    )
                    here = sum(x * stride for x, stride in zip(index, matrix.batch_strides[::-1], strict=True))
                    assert there == (here * 4 if o.raw_parts else number * o.matrix_pitch * 2)
                    assert source_of(o, number) == here


# Raw operands: the product splits A itself.


def test_the_copy_engine_reads_a_raw_operand_where_it_lies() -> None:
    """In lines of 32 along K or along the rows: see test_raw_tile.py."""
    seen = set()
    for plan in raw_plans():
        problem = plan.problem.transposed if "transposed" in plan.name else plan.problem
        for stage in (plan.stages[1], plan.stages[3]):
            c, a_map = constants(stage.kernel), stage.tensor_maps[0]
            assert (a_map.position, a_map.offset, a_map.dtype, a_map.line_bytes) == (0, 0, torch.float32, 128)
            assert a_map.box[:2] == (32, TILE_K if c["a_mn_major"] else c["tile_m"])
            assert a_map.sizes[:2] == ((problem.m, problem.k) if c["a_mn_major"] else (problem.k, problem.m))
            line_stride, unit = problem.a.row_stride, problem.a.column_stride
            if c["a_mn_major"]:
                line_stride, unit = unit, line_stride
            assert unit == 1 or a_map.sizes[0] == 1
            assert a_map.strides[0] == 4 * line_stride or a_map.sizes[1] == 1
            assert all(stride % 16 == 0 for stride in a_map.strides)
            seen.add((c["a_mn_major"], "transposed" in plan.name))
    assert seen == set(itertools.product((False, True), (False, True)))


def test_a_stage_of_the_ring_has_a_raw_step_of_a_and_all_planes_of_b() -> None:
    for plan in raw_plans():
        for stage in (plan.stages[1], plan.stages[3]):
            c = constants(stage.kernel)
            assert not c["b_stays"]
            operands = 4 * c["tile_m"] * TILE_K + c["planes"] * 2 * c["b_extent"] * TILE_K
            scales = 4 * c["tile_m"] // 64 * c["tile_n"]
            size = {"float": 4}[c["Output"]]
            assert c["out_store"] in (Store.BOXES, Store.LINES)
            staged = c["tile_m"] * c["store_buffers"] * c["chunk"] * size
            assert c["shared_bytes"] == c["stages"] * (operands + 16) + scales + staged


def test_a_raw_product_counts_every_group_of_rows_and_every_row_in_every_part() -> None:
    """keep_census of consume_raw.cuh: it writes all that the wide split reads, and every census once."""
    seen = set()
    for plan in raw_plans():
        split, stage, wide_split, _ = plan.stages[:4]
        a, _ = Operand.both(split)
        assert Operand.both(wide_split)[0].raw_parts == a.raw_parts == plan.splits
        product, c = Product.of(stage), constants(stage.kernel)
        problem = plan.problem.transposed if "transposed" in plan.name else plan.problem
        assert (product.split_exponents, product.split_pitch) == (a.slab_exponents, a.slab_pitch)
        assert (product.m, product.batches) == (problem.m, problem.batches)
        groups = -(-product.m // CENSUS_ROWS)
        assert a.blocks == groups * product.batches
        if product.batches * groups * plan.splits > 10**5:
            continue
        # The rows of every warp of every tile in the first column.
        warps = np.arange(0, product.tiles_m * c["cluster"] * c["tile_m"], CENSUS_ROWS)
        warps = warps[warps < product.m]
        batch, first, part = (
            x.ravel() for x in np.meshgrid(np.arange(product.batches), warps, np.arange(plan.splits), indexing="ij")
        )
        censuses = (batch * groups + first // CENSUS_ROWS) * plan.splits + part
        # total_of_parts of census.cuh: those of a part come every so many.
        assert np.array_equal(np.sort(censuses), np.arange(a.blocks * a.raw_parts))
        assert np.array_equal(censuses % a.raw_parts, part)
        rows = first[:, None] + np.arange(CENSUS_ROWS)
        index = np.array(list(np.ndindex(problem.batch)) or [()], dtype=np.int64).reshape(product.batches, -1)
        steps = np.array(product.scales[0].matrices[: index.shape[1]][::-1], dtype=np.int64)
        matrix = (index @ steps)[batch]
        exponents = part[:, None] * product.split_pitch + matrix[:, None] * product.scales[0].pitch + rows
        # exponent_for_all of task.cuh.
        asked = (
            np.arange(a.raw_parts)[:, None, None] * a.slab_pitch
            + np.arange(a.matrices)[:, None] * a.scale_pitch
            + np.arange(a.rows)
        )
        assert np.array_equal(np.unique(exponents[rows < product.m]), np.sort(asked.ravel()))
        seen.add((plan.splits > 1, product.batches > 1, product.tiles_n > 1, c["cluster"]))
    assert {(False, False, False, 1), (True, False, False, 1), (True, False, True, 2)} <= seen
    assert any(batched for _, batched, _, _ in seen)


def test_the_split_finds_a_scale_for_every_row_of_a_raw_operand() -> None:
    """run_for_scales of task.cuh: a row's sample is of that row, and inside of it."""
    seen = set()
    for plan in raw_plans():
        for split in (plan.stages[0], plan.stages[2]):
            a, _ = Operand.both(split)
            assert a.slabs == 1
            assert a.tasks == a.strips * a.matrices
            assert (a.strips - 1) * a.strip_rows < a.rows <= a.strips * a.strip_rows
            if a.tasks <= 10**4:
                assert sorted(task for _, task, _ in tasks_of(a, split.grid[0])) == list(range(a.tasks))
            strip = Strip(a.mn_major, a.strip_rows)
            samples = strip.lines if a.mn_major else min(strip.lanes, 32)
            ks = sampled_ks(samples, a.depth)
            assert ks.min() >= 0
            assert ks.max() < a.depth
            assert len(set(ks)) == samples or a.depth < 8 * samples
            seen.add((a.mn_major, a.strip_rows))
    assert seen == {(False, 8), (True, 64)}


RAW = sm90.Configuration(64, 32, raw=True)


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        (Problem.of(meta(256, 256), meta(256, 32), packed=(True, False)), "packed"),
        (Problem.of(meta(256, 256), meta(256, 32), packed=(False, True)), "packed"),
        (Problem.of(meta(256, 256).bfloat16(), meta(256, 32), may_mix=True), "only float32"),
        (Problem.of(meta(256, 256), meta(256, 32).half(), may_mix=True), "only float32"),
        (Problem.of(meta(256, 256).half(), meta(256, 32).half()), "only float32"),
        (Problem.of(strided((256, 256), (257, 1)), meta(256, 32)), "copy engine"),
        (Problem.of(strided((256, 256), (256, 1), 1), meta(256, 32)), "copy engine"),
        (Problem.of(strided((256, 256), (512, 2)), meta(256, 32)), "copy engine"),
        (Problem.of(meta(256, 256), meta(256, 32), accuracy="tf32"), "several planes"),
        (Problem.of(meta(256, 64), meta(64, 32)), "one step"),
    ],
    ids=["packed a", "packed b", "mixed a", "mixed b", "16 bits", "odd rows", "odd start", "gaps", "tf32", "one step"],
)
def test_only_two_plain_float32_operands_are_split_by_the_product(problem: Problem, word: str) -> None:
    reason = sm90.unsuited(problem, H200, RAW)
    assert reason
    assert word in reason
    assert sm90.unsuited(problem, H200, replace(RAW, raw=False)) is None
    offered = [candidate.name for candidate in sm90.candidates(problem, H200)]
    assert offered
    assert not any(name.endswith(" raw") for name in offered)
    if word != "copy engine":  # the others are not even considered
        assert not any(c.raw for c in sm90.configurations(problem, H200))
    elif problem.m > 1:
        excluded = {each.candidate: each.reason for each in sm90.exclusions(problem, H200)}
        assert excluded["sm90 64x32 raw"] == reason


def test_raw_is_offered_where_the_other_operand_has_few_columns_alone() -> None:
    """Every column of tiles splits A once more. An odd B does not matter: it is split anyway."""
    for n, offered in ((32, True), (500, True), (513, False), (4096, False)):
        problem = Problem.of(meta(4096, 1024), meta(1024, n))
        assert any(candidate.name.endswith(" raw") for candidate in sm90.candidates(problem, H200)) == offered
    for b in (strided((1024, 32), (33, 1)), strided((1024, 32), (1, 1025)), strided((1024, 32), (64, 2))):
        assert sm90.unsuited(Problem.of(meta(4096, 1024), b), H200, RAW) is None
    few_rows = Problem.of(meta(32, 1024), meta(1024, 4096))
    raw = [c for c in sm90.configurations(few_rows, H200) if c.raw]
    assert raw
    assert any(c.swap for c in raw)
    for c in raw:
        assert str(c).endswith(" raw")
        assert c.tile_n <= 128


def source_of(o: Operand, matrix: int) -> int:
    """Where the split finds a matrix."""
    at = 0
    for size, stride in list(zip(o.batch_size, o.batch_stride, strict=True))[: o.batch_rank]:
        at += matrix % size * stride
        matrix //= size
    assert matrix == 0
    return at


# A model of what split.cu reads and writes.

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Strip:
    """struct Strip of kernels/split/types.cuh."""

    mn_major: bool
    rows: int

    @property
    def lanes(self) -> int:
        return self.rows // VECTOR if self.mn_major else THREADS // self.rows

    @property
    def lines(self) -> int:
        return THREADS // self.lanes

    @property
    def step(self) -> int:
        return self.lines if self.mn_major else self.lanes * VECTOR


def tasks_of(o: Operand, grid: int) -> Iterator[tuple[int, int, int]]:
    """Which block does which task in which slab. Blocks are numbered anew for each operand."""
    assert 0 <= o.first_block < grid
    for index in range(grid):
        block = index + grid - o.first_block if index < o.first_block else index - o.first_block
        for task in range(block // o.slabs, o.tasks, grid // o.slabs):
            yield block, task, block % o.slabs


class Memory:
    """The planes of an operand: what is in them, and how often it was written."""

    def __init__(self, o: Operand) -> None:
        self.planes: Integers = np.full(o.matrices * o.matrix_pitch, -1)
        self.writes: Integers = np.zeros(o.matrices * o.matrix_pitch, dtype=np.int64)


def run_task(o: Operand, task: int, slab: int, memory: Memory) -> Integers:
    """Task::for_each_step. The elements that are read, as distances from the operand's first; their planes get these
    numbers plus one, and zero for what is past the end."""
    strip = Strip(o.mn_major, o.strip_rows)
    thread = np.arange(THREADS)
    line, in_line = thread // strip.lanes, thread % strip.lanes
    matrix, which = divmod(task, o.strips)
    first_row = which * strip.rows
    row = first_row + (in_line * VECTOR if o.mn_major else line)
    own_k = line if o.mn_major else in_line * VECTOR
    first_k = slab * o.slab_depth
    end_k = min(first_k + o.slab_depth, o.plane_depth)
    base = source_of(o, matrix)
    stores = row < (o.pitch if o.mn_major else o.rows)
    batch_depth = AT_ONCE * strip.step
    along = np.arange(VECTOR)
    # By batches, their steps, threads, and the elements of a vector. A slab that is all past the end has no batch.
    batch_k = np.arange(first_k, end_k, batch_depth)[:, None, None]
    is_inside = (first_row + strip.rows <= o.rows) & (batch_k + batch_depth <= min(o.depth, end_k))
    at = batch_k + np.arange(AT_ONCE)[:, None] * strip.step + own_k
    left = np.where(at < o.depth, o.rows - row, 0) if o.mn_major else np.where(row < o.rows, o.depth - at, 0)
    left = np.where(is_inside, VECTOR, np.where(at < end_k, left, 0))
    is_there = along < left[..., None]
    rows = row[:, None] + (along if o.mn_major else 0)
    ks = at[..., None] + (0 if o.mn_major else along)
    distance = base + rows * o.row_stride + ks * o.k_stride
    takes = is_inside | (stores & (at < end_k))
    to = matrix * o.matrix_pitch + (ks * o.pitch + rows if o.mn_major else rows * o.pitch + ks)
    assert not (to[takes][:, 0] % VECTOR).any()  # a vector of a plane is written at once
    numbers = np.where(is_there, distance + 1, 0)[takes]
    for plane in range(o.stored):
        there = to[takes] + plane * (o.plane_depth * o.pitch if o.mn_major else o.plane_depth)
        np.add.at(memory.writes, there, 1)
        memory.planes[there] = numbers
    return distance[is_there]


# Rows and K: fewer than a strip, than a vector and than a step; ends of all kinds; and long enough for slabs.
SIZES = [
    (1, 1),
    (1, 70),
    (2, 63),
    (3, 64),
    (5, 65),
    (7, 8),
    (8, 256),
    (9, 257),
    (31, 300),
    (63, 2),
    (64, 512),
    (65, 129),
    (130, 1000),
    (258, 640),
    (300, 3),
    (1, 5000),
    (2, 70000),
    (40, 33000),
    (1100, 100),
    (2100, 130),
    (5000, 72),
]
# By rows, by columns, with odd pitches, and with gaps between elements.
STRIDES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "rows": lambda rows, columns: (columns, 1),
    "columns": lambda rows, columns: (1, rows),
    "odd rows": lambda rows, columns: (columns // 4 * 4 + 5, 1),
    "odd columns": lambda rows, columns: (1, rows // 4 * 4 + 5),
    "apart by rows": lambda rows, columns: (2 * columns + 1, 2),
    "apart by columns": lambda rows, columns: (3, 3 * rows + 2),
}


def assert_split_whole(stage: Stage) -> None:
    """Every element of every matrix is read once, in its slab, and is in all of its planes; the rest of these is
    zero, and nothing is written twice."""
    for o in Operand.both(stage):
        memory = Memory(o)
        done = list(tasks_of(o, stage.grid[0]))
        assert sorted((task, slab) for _, task, slab in done) == list(itertools.product(range(o.tasks), range(o.slabs)))
        assert o.tasks == o.strips * o.matrices
        assert o.slab_depth % TILE_K == 0
        assert o.slab_depth * o.slabs >= o.plane_depth
        reads = [run_task(o, task, slab, memory) for _, task, slab in done]
        matrices = np.array([source_of(o, i) for i in range(o.matrices)])
        numbers = np.arange(o.rows)[:, None] * o.row_stride + np.arange(o.depth) * o.k_stride
        everything = (matrices[:, None, None] + numbers).ravel()
        assert np.array_equal(np.sort(np.concatenate(reads)), np.sort(everything))
        assert (memory.writes == 1).all()
        # Planes as the product reads them: lines along K or along the rows.
        planes = memory.planes.reshape(o.matrices, -1, o.pitch)
        if o.mn_major:
            planes = planes.transpose(0, 2, 1)
        assert planes.shape[1] >= o.rows
        expected = np.zeros((o.matrices, planes.shape[1], o.plane_depth), dtype=np.int64)
        expected[:, : o.rows, : o.depth] = matrices[:, None, None] + numbers + 1
        for plane in range(o.stored):
            assert np.array_equal(planes[:, :, plane * o.plane_depth :][:, :, : o.plane_depth], expected)


@pytest.mark.parametrize("strides", STRIDES)
def test_the_split_takes_every_element_once_and_fills_all_planes(strides: str) -> None:
    seen = set()
    for rows, depth in SIZES:
        a = strided((rows, depth), STRIDES[strides](rows, depth))
        accuracy: Accuracy = "fp32" if depth >= LEAST_K else "tf32"
        plan = planned(Problem.of(a, meta(5, depth).T, accuracy=accuracy), sm90.Configuration(64, 16))
        for stage in plan.stages[0:4:2] if rows * depth < 10**5 else plan.stages[:1]:
            assert_split_whole(stage)
        c = constants(plan.stages[0].kernel)
        seen |= {("rows", c["a_rows"]), ("slabs", c["a_slabs"] > 1), ("wide strips", c["a_rows"] > 1)}
        if rows > 1 and depth > 1:
            assert c["a_mn_major"] == ("columns" in strides)
            assert c["a_access"] in ((2,) if "apart" in strides else (1,) if "odd" in strides else (0, 1))
    assert {("slabs", False), ("slabs", True)} <= seen
    if "columns" not in strides:
        assert {("rows", 1), ("rows", 8), ("wide strips", True)} <= seen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 70, 90), (3, 90, 50)),
        ((3, 70, 90), (90, 50)),
        ((70, 90), (3, 90, 50)),
        ((2, 1, 33, 65), (3, 65, 17)),
        ((3, 1, 40, 24), (2, 1, 4, 24, 40)),
        ((40, 8, 16), (40, 16, 8)),
        ((2, 3, 5000), (2, 5000, 9)),
    ],
    ids=str,
)
def test_batches_are_split_matrix_by_matrix(a: tuple[int, ...], b: tuple[int, ...], layout: str) -> None:
    accuracy: Accuracy = "fp32" if a[-1] >= LEAST_K else "tf32"
    problem = Problem.of(laid_out(*a, layout=layout[0]), laid_out(*b, layout=layout[1]), accuracy=accuracy)
    for device in (H200, DEVICES["7 SMs"]):
        for stage in planned(problem, sm90.Configuration(64, 32), device).stages[0:4:2]:
            assert_split_whole(stage)


def test_blocks_that_had_less_of_one_operand_start_with_the_other() -> None:
    """All blocks together have the tasks of both as evenly as can be."""
    for plan in every_plan():
        stage = plan.stages[0]
        a, b = Operand.both(stage)
        grid = stage.grid[0]
        if a.tasks * a.slabs + b.tasks * b.slabs > 20 * grid:
            continue
        assert (a.first_block, b.first_block) == (0, a.tasks * a.slabs % grid)
        own: Counter[int] = Counter()
        for o in (a, b):
            blocks = Counter(block for block, _, _ in tasks_of(o, grid))
            own.update({(block + o.first_block) % grid: n for block, n in blocks.items()})
        assert sum(own.values()) == a.tasks * a.slabs + b.tasks * b.slabs
        assert max(own.values()) - min(own[i] for i in range(grid)) <= 1


def test_every_census_is_of_one_slab_and_slabs_have_their_censuses_in_turn() -> None:
    """The product adds up the censuses of a row's slabs, block by block."""
    for plan in every_plan():
        stage = plan.stages[0]
        for o in Operand.both(stage):
            assert o.slabs & (o.slabs - 1) == 0
            assert 1 <= o.slabs <= 128
            assert stage.grid[0] % o.slabs == 0
            if o.tasks * o.slabs <= 10**4:
                assert all(slab == block % o.slabs for block, _, slab in tasks_of(o, stage.grid[0]))


# What ptxas makes of it.


def assert_nothing_spills(*stages: Stage) -> list[Counter[str]]:
    """And ptxas has no complaints. The instructions of the kernels."""
    read = instructions_of_each([stage.kernel for stage in stages])
    for stage, found in zip(stages, read, strict=True):
        assert complaints(built(stage.kernel)[1]) == []
        assert_registers_suffice(stage, found)
    return read


def assert_registers_suffice(stage: Stage, found: Counter[str]) -> None:
    """And the grid waits for its predecessor."""
    _, log = built(stage.kernel)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    c = constants(stage.kernel)
    assert int(used[1]) * stage.threads * c.get("blocks_per_sm", 1) <= H200.registers_per_sm
    if stage.kernel.entry == "sm90":
        assert c["producer_registers"] <= int(used[1]) <= c["consumer_registers"]
    assert total(found, r"(LDL|STL)\b.*") == 0
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1


@dataclass(frozen=True)
class Case:
    """The kernels of a product of planes."""

    tile: tuple[int, int]
    layout: str
    accuracy: Accuracy
    depth: int
    cluster: int
    rank: int  # of the batch
    odd: bool  # an output that the copy engine cannot write

    def __str__(self) -> str:
        return "{}x{} {} {} K {}".format(*self.tile, self.layout, self.accuracy, self.depth)

    @property
    def plan(self) -> Plan:
        m, n = (4096, 2048)
        batch = (3,) * self.rank
        a = laid_out(*batch, m, self.depth, layout=self.layout[0])
        b = laid_out(*batch[:1], self.depth, n, layout=self.layout[1])
        out = meta(*batch, m, n + self.odd)[..., :n]
        problem = Problem.of(a, b, out=out, accuracy=self.accuracy)
        return planned(problem, sm90.Configuration(*self.tile, cluster=self.cluster))


def cases() -> list[Case]:
    """Every tile for sums that are promoted; the widest ones for a single step along K; and single planes."""
    found = []
    for i, tile in enumerate(sm90.PROMOTED_TILES):
        layout = LAYOUTS[i % 4] if tile[1] > 8 else "nt"
        found.append(
            Case(
                tile, layout, "fp32", 1024 if i % 2 else 256, 2 if i % 3 == 0 and tile[1] > 8 else 1, i % 3, i % 5 == 1
            )
        )
    found += (Case((128, 256), x, "fp32", 64, 1, 0, odd) for x, odd in (("nn", False), ("tt", True)))
    found.append(Case((64, 256), "tn", "fp32", 64, 1, 0, False))
    found += (Case((128, 256), x, "tf32", 256, 2, 1, False) for x in ("nn", "tt"))
    return found


CASES = cases()


def wide_tile(case: Case) -> tuple[int, int]:
    return case.tile[0], min(case.tile[1], sm90._WIDEST_OF_WIDE)


# Most tiles are narrower in the wide launch, and then the same: one of each tile, layout, accuracy and depth will do.
CASES_OF_WIDE = list({(wide_tile(case), case.layout, case.accuracy, case.depth): case for case in CASES}.values())


def test_the_cases_have_all_tiles_and_layouts() -> None:
    assert {case.tile for case in CASES if case.depth > TILE_K} >= set(sm90.PROMOTED_TILES)
    assert {case.layout for case in CASES} == {case.layout for case in CASES_OF_WIDE} == set(LAYOUTS)
    assert {wide_tile(case) for case in CASES} == {wide_tile(case) for case in CASES_OF_WIDE}
    assert {case.cluster for case in CASES_OF_WIDE} == {1, 2}
    assert {case.cluster for case in CASES} == {1, 2}
    assert {constants(case.plan.product.kernel)["b_stays"] for case in CASES} == {False, True}
    kernels = [constants(case.plan.product.kernel) for case in CASES]
    assert any(c["b_extent"] > c["tile_n"] for c in kernels)
    assert {c["out_store"] for c in kernels} == {Store.BOXES, Store.LINES, Store.DIRECT}
    assert {c["batch_rank"] for c in kernels} == {0, 1, 2}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_of_planes_do_not_spill_and_use_the_tensor_cores(case: Case) -> None:
    ordinary, wide = case.plan.stages[1:4:2]
    stages = [ordinary, wide] if case in CASES_OF_WIDE else [ordinary]
    for stage, found in zip(stages, assert_nothing_spills(*stages), strict=True):
        assert_uses_the_tensor_cores(case, stage, found, wide=stage is wide)


def assert_uses_the_tensor_cores(case: Case, stage: Stage, found: Counter[str], wide: bool) -> None:
    c = constants(stage.kernel)
    products = rf"HGMMA\.64x{c['tile_n']}x16\.F32" + (r"\.BF16" if wide else "")
    assert total(found, products) > 0
    assert total(found, products) == total(found, r"HGMMA.*")
    if not wide:
        # For a step of 64 along K: all products of planes but the one that is too small to matter in long sums.
        pairs_of_planes = 1 if c["planes"] == 1 else 4 if c["with_least_product"] else 3
        assert c["with_least_product"] == (c["planes"] == 2 and case.depth <= 512)
        assert total(found, products) % (4 * pairs_of_planes) == 0
    loads = rf"UTMALDG\.{2 + c['batch_rank']}D"
    assert total(found, loads) > 0
    assert total(found, rf"{loads}(\.MULTICAST)?") == total(found, r"UTMALDG.*")
    assert (total(found, rf"{loads}\.MULTICAST") > 0) == (case.cluster > 1)
    assert total(found, r"USETMAXREG\.DEALLOC.*") == total(found, r"USETMAXREG\.TRY_ALLOC.*") == 1


@dataclass(frozen=True)
class RawCase:
    """A kernel that splits A itself."""

    tile: tuple[int, int]
    layout: str  # of the operands as the kernel has them
    depth: int
    cluster: int = 1
    splits: int = 1
    swap: bool = False
    rank: int = 0  # of the batch
    odd: bool = False  # an output that the copy engine cannot write
    wide: bool = False

    def __str__(self) -> str:
        parts = [f"{'x'.join(map(str, self.tile))} {self.layout} K {self.depth} split {self.splits}"]
        return " ".join([*parts, *(["transposed"] if self.swap else []), *(["wide"] if self.wide else [])])

    @property
    def stage(self) -> Stage:
        m, n = (4096, 100)
        batch = (3,) * self.rank
        a = laid_out(*batch, m, self.depth, layout=self.layout[0])
        b = laid_out(*batch[:1], self.depth, n, layout=self.layout[1])
        out = meta(*batch, m, n + self.odd)[..., :n]
        if self.swap:
            a, b, out = b.mT, a.mT, out.mT
        c = sm90.Configuration(*self.tile, self.cluster, self.splits, self.swap, raw=True)
        return planned(Problem.of(a, b, out=out), c).stages[3 if self.wide else 1]


# The tiles of the wide launch are 64 columns wide at most.
RAW_CASES = [
    RawCase((128, 128), "nn", 1024, cluster=2, splits=3),
    RawCase((128, 128), "tt", 512, swap=True),
    RawCase((128, 112), "tn", 1024, rank=1, odd=True),
    RawCase((128, 96), "nt", 1024, swap=True),
    RawCase((128, 64), "tt", 512, cluster=2),
    RawCase((128, 32), "nn", 512, splits=2, swap=True),
    RawCase((64, 128), "tn", 1024, splits=2),
    RawCase((64, 96), "nt", 512, cluster=2, odd=True),
    RawCase((64, 64), "nn", 1024, rank=2),
    RawCase((64, 32), "tt", 1024, cluster=2, swap=True),
    RawCase((64, 16), "nn", 512),
    RawCase((64, 8), "tt", 1024, splits=2, swap=True),
    RawCase((128, 128), "tn", 1024, cluster=2, wide=True),
    RawCase((128, 32), "nt", 512, splits=2, swap=True, wide=True),
    RawCase((64, 64), "nn", 1024, rank=1, odd=True, wide=True),
    RawCase((64, 8), "tt", 1024, wide=True),
]


def test_the_raw_cases_have_all_tiles_and_layouts() -> None:
    tiles = {tile for tile in sm90.PROMOTED_TILES if tile[1] <= sm90._WIDEST_OF_RAW}
    assert {case.tile for case in RAW_CASES if not case.wide} == tiles
    for wide in (False, True):
        own = [case for case in RAW_CASES if case.wide == wide]
        assert {case.layout for case in own} == set(LAYOUTS)
        for name in ("swap", "odd", "depth", "cluster"):
            assert len({getattr(case, name) for case in own}) == 2
        assert {case.splits > 1 for case in own} == {False, True}
        assert {constants(case.stage.kernel)["a_mn_major"] for case in own} == {False, True}
    assert {constants(case.stage.kernel)["with_least_product"] for case in RAW_CASES} == {False, True}


@pytest.mark.parametrize("case", RAW_CASES, ids=str)
def test_raw_products_do_not_spill_and_have_a_in_registers(case: RawCase) -> None:
    """And nothing writes to a register that a product under way may still read."""
    stage = case.stage
    text = disassembled(stage.kernel)
    found = instructions_in(text)
    assert_registers_suffice(stage, found)
    c = constants(stage.kernel)
    assert c["a_is_raw"]
    assert c["a_mn_major"] == (case.layout[0] == "t")
    products = rf"HGMMA\.64x{c['tile_n']}x16\.F32" + (r"\.BF16" if case.wide else "")
    assert total(found, products) > 0
    assert total(found, products) == total(found, r"HGMMA.*")
    assert products_of_registers(text) == total(found, products)
    assert overwritten_operands(text) == []
    if not case.wide:
        # In the loop and after it, for four parts of a step.
        assert total(found, products) % (4 * (4 if c["with_least_product"] else 3)) == 0
    loads = rf"UTMALDG\.{2 + c['batch_rank']}D"
    assert total(found, loads) > 0
    assert total(found, rf"{loads}(\.MULTICAST)?") == total(found, r"UTMALDG.*")
    assert (total(found, rf"{loads}\.MULTICAST") > 0) == (case.cluster > 1)
    assert total(found, r"USETMAXREG\.DEALLOC.*") == total(found, r"USETMAXREG\.TRY_ALLOC.*") == 1


@pytest.mark.parametrize("case", RAW_CASES, ids=str)
def test_raw_products_do_not_wait_for_each_other(case: RawCase) -> None:
    kernel = case.stage.kernel
    assert complaints(built(kernel)[1]) == []
    found = instructions_in(disassembled(kernel))
    # All products of a part, or of a whole step, are under way together.
    assert 3 * total(found, r"WARPGROUP\.DEPBAR.*") <= total(found, r"HGMMA.*")


# Vectors, elements side by side, and elements apart; along K and along the rows.
KINDS = {
    (False, 0): strided((200, 304), (304, 1)),
    (False, 1): strided((200, 304), (305, 1)),
    (False, 2): strided((200, 304), (700, 2)),
    (True, 0): strided((200, 304), (1, 200)),
    (True, 1): strided((200, 304), (1, 201)),
    (True, 2): strided((200, 304), (2, 500)),
}
KINDS_OF_SPLITS = [((False, 0), (True, 1)), ((True, 2), (False, 1)), ((True, 0), (False, 2))]


@pytest.mark.parametrize("kinds", KINDS_OF_SPLITS, ids=str)
def test_splits_of_every_kind_do_not_spill(kinds: tuple[tuple[bool, int], ...]) -> None:
    assert {kind for each in KINDS_OF_SPLITS for kind in each} == KINDS.keys()
    a, b = (KINDS[kind] for kind in kinds)
    ordinary_and_wide = planned(Problem.of(a, b.T), sm90.Configuration(64, 64)).stages[:4:2]
    for stage, found in zip(ordinary_and_wide, assert_nothing_spills(*ordinary_and_wide), strict=True):
        c = constants(stage.kernel)
        assert tuple((c[f"{x}_mn_major"], c[f"{x}_access"]) for x in "ab") == kinds
        assert (total(found, r"LDG\.E\.128.*") > 0) == any(access == 0 for _, access in kinds)
        assert total(found, r"STG\.E\.64.*") > 0


@pytest.mark.parametrize(("layout", "splits"), [("n", 3), ("t", 1)])
def test_splits_for_raw_operands_do_not_spill(layout: str, splits: int) -> None:
    problem = Problem.of(laid_out(3, 400, 1024, layout=layout), meta(1024, 20))
    ordinary_and_wide = planned(problem, sm90.Configuration(64, 32, splits=splits, raw=True)).stages[:4:2]
    for stage in ordinary_and_wide:
        c = constants(stage.kernel)
        assert (c["a_is_raw"], c["a_mn_major"], c["a_parts"]) == (True, layout == "t", splits)
    assert_nothing_spills(*ordinary_and_wide)


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_splits_of_long_rows_and_of_batches_do_not_spill(accuracy: Accuracy) -> None:
    problem = Problem.of(meta(3, 1, 4, 70000), meta(2, 70000, 5), accuracy=accuracy)
    ordinary_and_wide = planned(problem, sm90.Configuration(64, 16)).stages[:4:2]
    for stage in ordinary_and_wide:
        c = constants(stage.kernel)
        assert (c["a_slabs"] > 1, c["b_slabs"] > 1, c["batch_rank"]) == (True, True, 2)
    assert_nothing_spills(*ordinary_and_wide)


# What is chosen.


@pytest.mark.parametrize("product", suites.load("seeds"), ids=str)
@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_the_products_that_it_was_made_for_get_the_tensor_cores(product: suites.Product, accuracy: Accuracy) -> None:
    a, b = (
        laid_out(*sizes, layout="t" if layout == "transposed" else "n")
        for sizes, layout in (
            ((product.m, product.k), product.a_layout),
            ((product.k, product.n), product.b_layout),
        )
    )
    plan = choose(Problem.of(a, b, accuracy=accuracy), H200)
    assert plan.name.startswith("sm90 ")
    assert entries(plan)[:4] == ["split", "sm90", "split", "sm90"]
    for gpu, device in KNOWN_GPUS.items():
        assert (entries(choose(Problem.of(a, b, accuracy=accuracy), device))[0] == "split") == (gpu in ("h200", "h100"))
    assert entries(choose(Problem.of(a, b, accuracy="ieee"), H200))[0] != "split"


@pytest.mark.parametrize("size", [64, 100, 128, 192, 256])
def test_products_that_are_over_before_a_split_would_be_are_of_doubles(size: int) -> None:
    for layout in LAYOUTS:
        a, b = laid_out(size, size, layout=layout[0]), laid_out(size, size, layout=layout[1])
        assert entries(choose(Problem.of(a, b), H200)) == ["exact"]


def test_sums_in_float32_alone_are_left_to_the_cuda_cores() -> None:
    problem = Problem.of(meta(4096, 4096), meta(4096, 4096), accuracy="ieee")
    reason = sm90.rejects(problem, H200)
    assert reason is not None
    assert "'ieee'" in reason
    assert choose(problem, H200).name.startswith("simt")


@pytest.mark.parametrize("gpu", [gpu for gpu in KNOWN_GPUS if KNOWN_GPUS[gpu].capability != (9, 0)])
def test_other_gpus_multiply_float32_with_their_cuda_cores(gpu: str) -> None:
    for m, k, n in [(64, 64, 64), (4096, 4096, 4096), (2048, 8192, 4096)]:
        assert choose(Problem.of(meta(m, k), meta(k, n)), named(gpu)).name.startswith("simt")


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_the_cheapest_candidate_of_both_families_wins(accuracy: Accuracy) -> None:
    for size in (128, 512, 1024, 2048):
        problem = Problem.of(meta(size, size), meta(size, size), accuracy=accuracy)
        plan = choose(problem, H200)
        candidates = [*sm90.candidates(problem, H200), *exact.FAMILY.candidates(problem, H200)]
        assert plan.cycles == min(candidate.cycles for candidate in candidates)
        assert plan.cycles == next(candidate.cycles for candidate in candidates if candidate.name == plan.name)
        listed = {plan.name, *(rejection.candidate for rejection in plan.rejections)}
        assert {candidate.name for candidate in candidates} <= listed


# Making up for what tensor cores cut off.


def made_up(a: torch.Tensor, b: torch.Tensor, configuration: sm90.Configuration | None = None) -> dict[str, bool]:
    """Whose scales do, of those that are split."""
    problem = Problem.of(a, b, may_mix=a.dtype != b.dtype)
    plan = choose(problem, H200) if configuration is None else sm90.plan(problem, H200, configuration)
    c = constants(plan.stages[0].kernel)
    is_swapped = "transposed" in plan.name
    return {"ba"[i] if is_swapped else "ab"[i]: c[f"{name}_makes_up"] for i, name in enumerate("ab")}


def test_one_operand_makes_up_for_what_is_cut_off() -> None:
    a, b = torch.empty(2048, 2048, device="meta"), torch.empty(2048, 2048, device="meta")
    assert made_up(a, b) == {"a": False, "b": True}
    raw = sm90.Configuration(128, 128, 1, 1, False, True)
    assert made_up(a, b[:, :256].contiguous(), raw) == {"a": False, "b": True}
    # A is split by the product, which reads its scales as powers of two.
    assert made_up(a[:256], b, replace(raw, swap=True)) == {"a": True, "b": False}
    # 16-bit numbers have one plane.
    assert made_up(a, b.half()) == {"a": False, "b": False}
    assert made_up(a.half(), b) == {"a": False, "b": True}
    for stage in choose(Problem.of(a, b), H200).stages[2:3]:
        c = constants(stage.kernel)
        assert c["wide"] and not c["a_makes_up"] and not c["b_makes_up"]


@pytest.mark.parametrize("first", (False, True))
def test_a_packed_operand_makes_up_if_it_is_the_second(first: bool) -> None:
    a, b = torch.empty(2048, 2048, device="meta"), torch.empty(2048, 2048, device="meta")
    problem = Problem.of(a, b, packed=(first, not first))
    packing = sm90.packing(problem, H200)
    assert packing is not None
    assert constants(packing.stages[0].kernel)["a_makes_up"] == (not first)
    (split, *_) = choose(problem, H200).stages  # of the other one
    assert constants(split.kernel)["a_makes_up"] == first
