"""float32 products on tensor cores: the launches that split operands into terms and multiply these, what they keep in
the workspace, and what ptxas makes of them. What the values become is the business of the tests of the promise."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import launched
import machine_code
import numpy as np
import pytest
import torch
from launched import DEVICES, Region, addresses_of, constants_of, entries, is_swapped, kinds_of, parameters_of
from machine_code import instructions_in, instructions_of_each, total
from meta_tensors import laid_out, meta, strided

from tilesmith.bench import suites
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS, Device, named
from tilesmith.core.params import TILE_K, Address, TensorMap
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels import split_k_reduce
from tilesmith.kernels.fp32_split import launch as fp32_split
from tilesmith.kernels.fp32_split.launch import Access
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.hopper import catalogue, tiles
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper.constants import RsConstants, Runs, TermConstants
from tilesmith.kernels.hopper.launch import Fp32Parameters
from tilesmith.kernels.hopper.traits import MAX_PROMOTED_TILE_N
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.output import Store
from tilesmith.planner import choose

H200 = named("h200")
LAYOUTS = ["nn", "nt", "tn", "tt"]
ACCURACIES: list[Accuracy] = ["fp32", "tf32"]
MAX_K_CHUNKS = 128
RANGE_STATS_BYTES = 16
MIN_K = 33  # for terms that keep what the promise of fp32 asks for


def planned(problem: Problem, configuration: hopper.Configuration, device: Device = H200) -> Plan:
    assert hopper.rejects(problem, device) is None
    assert hopper.unsuited(problem, device, configuration) is None
    return hopper.plan(problem, device, configuration)


# Batches, rows and columns that end within a row block, several K chunks, and less K than a step.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((1, 1), (1, 1)), ((4096, 4096), (4096, 4096)), ((8205, 2949), (2949, 5921)), ((32768, 64), (64, 32768))),
    *(((256, 524288), (524288, 256)), ((1, 1048576), (1048576, 70)), ((17, 8192), (8192, 8192))),
    *(((130, 70), (70, 24)), ((300, 5), (5, 500)), ((7000, 8, 16), (7000, 16, 8))),
    *(((7, 1, 33, 65), (1, 9, 65, 17)), ((2, 1, 3, 64, 640), (5, 1, 640, 72)), ((3, 100, 6000), (6000, 40))),
]


def pairs(layouts: list[str]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Operands of every shape in these layouts, and others with strides of all kinds."""
    for (a, b), layout in itertools.product(SHAPES, layouts):
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
    """One of each kind that the family offers: with and without split_k, clusters, swap_ab, and an A that is split in
    registers; and two whose output has gaps. Other GPUs are asked for two layouts, in which each operand has both."""
    gaps = (Problem.of(meta(512, 1024), meta(1024, 512), out=meta(512, 1024)[:, ::2], accuracy=x) for x in ACCURACIES)
    plans = [planned(problem, hopper.Configuration(64, 64), device) for problem in gaps]
    of_shapes = LAYOUTS if device == H200 else LAYOUTS[1:3]
    for (a, b), accuracy in itertools.product(pairs(of_shapes), ACCURACIES):
        problem = Problem.of(a, b, accuracy=accuracy)
        if accuracy == "fp32" and problem.k < MIN_K:
            assert "so short" in (hopper.rejects(problem, device) or "")
            continue
        assert hopper.rejects(problem, device) is None
        kinds = {}
        for c in tiles.configurations(problem, device):
            if hopper.unsuited(problem, device, c) is None:
                kinds[c.swap_ab, c.split_k, c.cluster, c.tile_m, c.tile_n > 128, c.rs] = c
        assert kinds
        plans += [hopper.plan(problem, device, c) for c in kinds.values()]
    return plans


def is_rs(plan: Plan) -> bool:
    return plan.name.endswith(" rs")


def rs_plans(device: Device = H200) -> Iterator[Plan]:
    return filter(is_rs, every_plan(device))


def split_constants(launch: KernelLaunch) -> fp32_split.Constants:
    return constants_of(launch.kernel, fp32_split.Constants)


def both_operands(launch: KernelLaunch) -> tuple[fp32_split.Operand, fp32_split.Operand]:
    """The operands that a launch splits: A and B, which it reads where they are, and writes to the workspace."""
    assert launch.kernel.entry == "split"
    p = parameters_of(launch, fp32_split.Parameters)
    assert p.count == 2
    a, b = p.operands
    assert {a.source, b.source} == {Address("a"), Address("b")}
    others = [each for each in addresses_of(launch) if each not in (a.source, b.source)]
    assert {each.buffer for each in others} == {"workspace"}
    return a, b


def product_constants(launch: KernelLaunch) -> RsConstants:
    """Those that both kernels for float32 have."""
    return constants_of(launch.kernel, RsConstants)


def products_of(plan: Plan) -> list[KernelLaunch]:
    """Of ordinary terms, and of full-range ones."""
    return [launch for launch in plan.launches if launch.multiplies]


def offset_of(pointer: Address | None) -> int:
    """A place in the workspace."""
    assert pointer is not None and pointer.buffer == "workspace"
    return pointer.offset


def map_of(slot: TensorMap | None) -> TensorMap:
    assert slot is not None
    return slot


@pytest.mark.parametrize(("accuracy", "ordinary", "full_range"), [("fp32", 2, 3), ("tf32", 1, 2)])
def test_each_pair_of_launches_knows_its_terms_and_when_it_runs(
    accuracy: Accuracy, ordinary: int, full_range: int
) -> None:
    """The first split finds the range statistics, and the product after it reads them; the launches for the full range
    do nothing unless these say so."""
    seen = set()
    for plan in every_plan():
        if plan.problem.accuracy != accuracy:
            continue
        rs, p = is_rs(plan), plan.problem.transposed if is_swapped(plan) else plan.problem
        pair = ["split", "gemm_fp32_rs" if rs else "gemm_fp32"]
        is_reduced = plan.split_k > 1 or plan.problem.out.column_stride > 1
        assert entries(plan) == [*pair, *pair, *["split_k_reduce"] * is_reduced]
        assert plan.product is plan.launches[1]
        splits = plan.launches[:4:2]
        products = [product_constants(launch) for launch in products_of(plan)]
        assert [split_constants(launch).full_range for launch in splits] == [False, True]
        terms = [[kind.terms for kind in kinds_of(launch)] for launch in splits]
        assert terms == [[ordinary, ordinary], [full_range, full_range]]
        assert [c.terms for c in products] == [ordinary, full_range]
        # An A that is split in registers has range statistics after the first product alone, which cannot ask for them.
        assert [c.runs for c in products] == [Runs.ALWAYS if rs else Runs.IF_IN_RANGE, Runs.IF_OUT_OF_RANGE]
        assert [c.scale for c in products] == [Scale.FACTORS, Scale.EXPONENTS]
        narrowest = 64 if rs else 96  # of two warpgroups
        assert products[1].tile_n <= max(16, min(products[0].tile_n, narrowest))
        assert not products[1].stationary_b
        assert [split_constants(launch).a_is_rs for launch in splits] == [rs, rs]
        for a, b in map(both_operands, splits):
            assert (a.parts, b.parts) == (plan.split_k if rs else a.k_chunks, b.k_chunks)
        for c in products:
            assert isinstance(c, TermConstants) != rs
            if isinstance(c, TermConstants):
                assert c.a_terms == c.b_terms == c.terms
        for launch, c, dtype in zip(products_of(plan), products, (torch.float16, torch.bfloat16), strict=True):
            wgmma, own = launch.kernel.wgmma, parameters_of(launch, Fp32Parameters)
            assert wgmma is not None and (wgmma.n, wgmma.dtype, wgmma.a_in_registers) == (c.tile_n, dtype, rs)
            a_map, b_map = map_of(own.a), map_of(own.b)
            assert (a_map.dtype, b_map.dtype) == (torch.float32 if rs else dtype, dtype)
            source = "b" if is_swapped(plan) else "a"
            assert (a_map.buffer, b_map.buffer) == (source if rs else "workspace", "workspace")
            assert (own.m, own.depth) == (p.m, p.k)
            a, b = both_operands(splits[0])
            assert (own.a_k_chunks, own.b_k_chunks) == (a.k_chunks, b.k_chunks)
        seen.add((len(plan.launches), rs))
    assert seen == set(itertools.product((4, 5), (False, True) if accuracy == "fp32" else (False,)))


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_plan_is_a_legal_launch(device: Device) -> None:
    seen = set()
    for plan in every_plan(device):
        seen.add(is_rs(plan))
        for launch in plan.launches:
            assert launch.awaits_predecessor
            assert len(launch.parameters.packed()) <= 4096
            assert launch.grid[0] >= 1
            assert launch.grid[1:] == (1, 1)
        for launch in plan.launches[:4:2]:
            a, b = both_operands(launch)
            assert (launch.kernel.threads, launch.kernel.shared_bytes) == (256, 0)
            k_chunks = max(a.k_chunks, b.k_chunks)
            # The blocks are as many as for an A in terms, so that B has the same K chunks and range statistics.
            most = max(k_chunks, MAX_K_CHUNKS if split_constants(launch).a_is_rs else 0)
            assert launch.grid[0] <= max(3 * device.sm_count, most)
            assert launch.grid[0] % k_chunks == 0
            assert max(a.parts, b.parts) <= 128  # PartCounts of range_check.cuh
        for launch in products_of(plan):
            c = product_constants(launch)
            # With fewer stages than a step has terms, consumers would wait forever. If they split A themselves, a stage
            # has a whole step, and the next one is split while the products of one run.
            assert c.stages >= (2 if is_rs(plan) else max(c.terms, 2))
            assert launch.kernel.shared_bytes <= device.shared_bytes_per_block
            assert c.cluster == launch.cluster <= launch.grid[0] <= device.sm_count
            if c.terms > 1 and plan.problem.k > TILE_K:
                assert c.tile_n <= MAX_PROMOTED_TILE_N
            assert c.tile_n <= c.b_extent < c.tile_n + TILE_K
            if c.b_mn_major and c.terms > 1 and c.tile_n > TILE_K:
                assert c.b_extent % TILE_K == 0
            consumers = launch.kernel.threads // 128 - 1
            assert consumers == c.tile_m // 64
            registers = 128 * (c.producer_registers + consumers * c.consumer_registers)
            assert registers <= device.registers_per_sm
    assert seen == {False, True}


def term_regions(launch: KernelLaunch) -> list[Region]:
    """Where a split leaves terms: an A that is split in registers has none."""
    found = []
    for o in both_operands(launch)[split_constants(launch).a_is_rs :]:
        assert o.source is not None
        first = offset_of(o.target)
        found.append(Region(first, first + 2 * math.prod(o.batch_size) * o.matrix_pitch, f"terms of {o.source.buffer}"))
    return found


def scale_regions(launch: KernelLaunch) -> list[Region]:
    """Where a split leaves scales. With one K chunk, its exponents are those of the rows, and there is no need to keep
    them twice. An A that is split in registers has them for every part of K that the product counts."""
    found = []
    for o in both_operands(launch):
        assert o.source is not None
        name, numbers = o.source.buffer, 4 * math.prod(o.batch_size) * o.scale_pitch
        factors, exponents, of_chunks = map(offset_of, (o.factors, o.full_range_exponents, o.k_chunk_exponents))
        found.append(Region(factors, factors + numbers, f"factors of {name}"))
        found.append(Region(exponents, exponents + numbers, f"exponents of {name}"))
        if o.parts == 1:
            assert of_chunks == exponents
            continue
        assert 4 * o.k_chunk_pitch >= numbers
        end = of_chunks + 4 * (o.parts - 1) * o.k_chunk_pitch + numbers
        found.append(Region(of_chunks, end, f"exponents of K chunks of {name}"))
    return found


def range_stats_regions(plan: Plan) -> list[Region]:
    """Where the range statistics are, and after them the range check; and beside that, where the first product splits A
    in registers, how many of its blocks have counted."""
    launch = plan.launches[0]
    own, (a, b) = parameters_of(launch, fp32_split.Parameters), both_operands(launch)
    first, second = offset_of(a.range_stats), offset_of(b.range_stats)
    range_check, of_blocks = offset_of(own.range_check), launch.grid[0] * RANGE_STATS_BYTES
    assert second + of_blocks <= range_check
    if split_constants(launch).a_is_rs:
        row_groups = parameters_of(plan.launches[1], Fp32Parameters).a_range_stats_count
        of_rows = Region(first, first + row_groups * a.parts * RANGE_STATS_BYTES, "range statistics of rows")
        return [of_rows, Region(second, range_check + 8, "range statistics")]
    assert first + of_blocks <= second
    return [Region(first, range_check + 4, "range statistics")]


def test_what_is_alive_at_the_same_time_has_its_own_part_of_the_workspace() -> None:
    """Ordinary and full-range terms are never both needed, and may share memory; nothing else may."""
    seen = set()
    for plan in every_plan():
        ordinary, _, full_range, _, *last = plan.launches
        kept = scale_regions(ordinary)
        assert kept == scale_regions(full_range)
        kept += range_stats_regions(plan)
        if last:
            reduction = parameters_of(last[0], split_k_reduce.Parameters)
            first = offset_of(reduction.partial)
            kept.append(Region(first, first + reduction.split_k * reduction.vectors * 16, "partial products"))
            by_tma, by_threads = (parameters_of(launch, Fp32Parameters) for launch in products_of(plan))
            assert map_of(by_tma.out).offset == offset_of(by_threads.out_lines.first) == first
            assert kept[-1].holds(Region.of_map(map_of(by_tma.out)))
        for split in (ordinary, full_range):
            regions = [*kept, *term_regions(split)]
            launched.assert_apart(regions, plan.workspace_bytes)
            seen |= {region.name for region in regions}
        ends = [region.end for split in (ordinary, full_range) for region in term_regions(split)]
        assert plan.workspace_bytes < max(ends) + 256
    assert len(seen) == 2 * 4 + 2 + 1


def test_products_look_where_splits_have_left_it() -> None:
    """Terms, scales, range statistics and the range check; and of an A that is split in registers, the exponents."""
    for plan in every_plan():
        for split, launch in (plan.launches[:2], plan.launches[2:4]):
            made, own = parameters_of(split, fp32_split.Parameters), parameters_of(launch, Fp32Parameters)
            (a, b), c = both_operands(split), split_constants(split)
            if not c.a_is_rs:
                assert map_of(own.a).offset == offset_of(a.target)
            assert map_of(own.b).offset == offset_of(b.target)
            for scales, o in ((own.a_scales, a), (own.b_scales, b)):
                assert scales.first == (o.full_range_exponents if c.full_range else o.factors)
                assert scales.pitch == o.scale_pitch
            assert (own.a_range_stats, own.b_range_stats) == (a.range_stats, b.range_stats)
            assert own.b_range_stats_count == split.grid[0]
            assert c.a_is_rs or own.a_range_stats_count == split.grid[0]
            assert own.range_check == made.range_check
            assert own.split_exponents == (a.k_chunk_exponents if c.a_is_rs else None)
            assert own.split_pitch == a.k_chunk_pitch


def test_tiles_ask_for_scales_past_the_last_row_that_are_still_their_operands() -> None:
    for plan in every_plan():
        for split, launch in (plan.launches[:2], plan.launches[2:4]):
            c, schedule = product_constants(launch), parameters_of(launch, Fp32Parameters).schedule
            reach = (schedule.tiles_m * c.cluster * c.tile_m, schedule.tiles_n * c.tile_n)
            for o, rows in zip(both_operands(split), reach, strict=True):
                assert o.rows <= rows <= o.scale_pitch


def test_blocks_that_had_less_of_one_operand_start_with_the_other() -> None:
    """All blocks together have the tasks of both as evenly as can be. Every K chunk is that of as many blocks."""
    for plan in every_plan():
        split = plan.launches[0]
        grid = split.grid[0]
        own = np.zeros(grid, dtype=np.int64)
        for o in both_operands(split):
            assert 1 <= o.k_chunks <= MAX_K_CHUNKS
            assert o.k_chunks & (o.k_chunks - 1) == 0
            assert grid % o.k_chunks == 0
            tasks = np.arange(o.tasks * o.k_chunks)
            own += np.bincount((tasks + o.first_block) % grid, minlength=grid)
        assert own.max() - own.min() <= 1


def test_tma_reads_an_a_that_is_split_in_registers_where_it_lies() -> None:
    """In lines of 32 along K or along the rows."""
    seen = set()
    for plan in rs_plans():
        p = plan.problem.transposed if is_swapped(plan) else plan.problem
        for launch in products_of(plan):
            c, a_map = product_constants(launch), map_of(parameters_of(launch, Fp32Parameters).a)
            assert (a_map.offset, a_map.dtype, a_map.line_bytes) == (0, torch.float32, 128)
            assert a_map.box[:2] == (32, TILE_K if c.a_mn_major else c.tile_m)
            assert a_map.sizes[:2] == ((p.m, p.k) if c.a_mn_major else (p.k, p.m))
            line_stride, unit = p.a.row_stride, p.a.column_stride
            if c.a_mn_major:
                line_stride, unit = unit, line_stride
            assert unit == 1 or a_map.sizes[0] == 1
            assert a_map.strides[0] == 4 * line_stride or a_map.sizes[1] == 1
            assert all(stride % 16 == 0 for stride in a_map.strides)
            seen.add((c.a_mn_major, is_swapped(plan)))
    assert seen == set(itertools.product((False, True), (False, True)))


def test_a_stage_of_the_ring_has_a_float32_step_of_a_and_all_terms_of_b() -> None:
    for plan in rs_plans():
        for launch in products_of(plan):
            c = product_constants(launch)
            assert not c.stationary_b
            operands = 4 * c.tile_m * TILE_K + c.terms * 2 * c.b_extent * TILE_K
            scales = 4 * c.tile_m // 64 * c.tile_n
            assert c.Output == "float"
            assert c.out_store in (Store.BOXES, Store.LINES)
            lines, length = (c.chunk, 64) if c.out_along_m else (64, c.chunk)
            gap, front = (32, 16) if c.out_store is Store.LINES else (0, 0)
            staged = c.tile_m // 64 * (front + c.store_buffers * lines * (length * 4 + gap))
            assert launch.kernel.shared_bytes == c.stages * (operands + 16) + scales + staged


RS = hopper.Configuration(64, 32, rs=True)


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        (Problem.of(meta(256, 512), meta(512, 32), packed=(True, False)), "packed"),
        (Problem.of(meta(256, 512), meta(512, 32), packed=(False, True)), "packed"),
        (Problem.of(meta(256, 512).bfloat16(), meta(512, 32), may_mix=True), "only float32"),
        (Problem.of(meta(256, 512), meta(512, 32).half(), may_mix=True), "only float32"),
        (Problem.of(meta(256, 512).half(), meta(512, 32).half()), "only float32"),
        (Problem.of(strided((256, 512), (513, 1)), meta(512, 32)), "TMA"),
        (Problem.of(strided((256, 512), (512, 1), 1), meta(512, 32)), "TMA"),
        (Problem.of(strided((256, 512), (1024, 2)), meta(512, 32)), "TMA"),
        (Problem.of(meta(256, 512), meta(512, 32), accuracy="tf32"), "several terms"),
        (Problem.of(meta(256, 64), meta(64, 32)), "one step"),
    ],
    ids=["packed a", "packed b", "mixed a", "mixed b", "16 bits", "odd rows", "odd start", "gaps", "tf32", "one step"],
)
def test_only_two_plain_float32_operands_are_split_by_the_product(problem: Problem, word: str) -> None:
    reason = str(hopper.unsuited(problem, H200, RS))
    assert word in reason
    assert hopper.unsuited(problem, H200, replace(RS, rs=False)) is None
    offered = [candidate.name for candidate in hopper.candidates(problem, H200)]
    assert offered
    assert not any(name.endswith(" rs") for name in offered)
    if word != "TMA":  # the others are not even considered
        assert not any(c.rs for c in tiles.configurations(problem, H200))
    elif problem.m > 1:
        excluded = {each.candidate: each.reason for each in hopper.exclusions(problem, H200)}
        assert excluded["hopper 64x32 rs"] == reason


def test_rs_is_offered_where_the_other_operand_has_few_columns_alone() -> None:
    """Every column of tiles splits A once more. An odd B does not matter: it is split anyway. Nor is it for short K."""
    for k, n, offered in (
        (1024, 32, True),
        (1024, 500, True),
        (1024, 513, False),
        (1024, 4096, False),
        (256, 32, False),
    ):
        problem = Problem.of(meta(4096, k), meta(k, n))
        assert any(candidate.name.endswith(" rs") for candidate in hopper.candidates(problem, H200)) == offered
    for b in (strided((1024, 32), (33, 1)), strided((1024, 32), (1, 1025)), strided((1024, 32), (64, 2))):
        assert hopper.unsuited(Problem.of(meta(4096, 1024), b), H200, RS) is None
    few_rows = Problem.of(meta(32, 1024), meta(1024, 4096))
    found = [c for c in tiles.configurations(few_rows, H200) if c.rs]
    assert found
    assert any(c.swap_ab for c in found)
    for c in found:
        assert str(c).endswith(" rs")
        assert c.tile_n <= 128


def assert_nothing_spills(*launches: KernelLaunch) -> list[Counter[str]]:
    """And ptxas has no complaints. The instructions of the kernels."""
    read = instructions_of_each([launch.kernel for launch in launches])
    for launch, found in zip(launches, read, strict=True):
        assert_runs_as_it_should(launch, found)
    return read


def assert_runs_as_it_should(launch: KernelLaunch, found: Counter[str]) -> None:
    """Without a spill, and the grid waits for its predecessor; before all else, if that may leave it nothing to do."""
    machine_code.assert_nothing_spills(launch)
    assert total(found, r"(LDL|STL)\b.*") == 0
    assert total(found, r"PREEXIT") == 1
    constants = launch.kernel.constants
    may_end = isinstance(constants, RsConstants) and constants.runs is Runs.IF_OUT_OF_RANGE
    assert total(found, r"ACQBULK") == 1 + may_end


def assert_uses_the_tensor_cores(launch: KernelLaunch, found: Counter[str], *, full_range: bool) -> None:
    """With the instructions that the plan has chosen, and loads by TMA."""
    c = product_constants(launch)
    products = rf"HGMMA\.64x{c.tile_n}x16\.F32" + (r"\.BF16" if full_range else "")
    assert total(found, products) > 0
    assert total(found, products) == total(found, r"HGMMA.*")
    if not full_range:
        # For a step of 64 along K: all products of terms but the one that is too small to matter in long sums.
        term_products = 1 if c.terms == 1 else 4 if c.with_least_product else 3
        depth = parameters_of(launch, Fp32Parameters).depth
        assert c.with_least_product == (c.terms == 2 and depth <= 512)
        assert total(found, products) % (4 * term_products) == 0
    loads = rf"UTMALDG\.{2 + c.batch_dims}D"
    assert total(found, loads) > 0
    assert total(found, rf"{loads}(\.MULTICAST)?") == total(found, r"UTMALDG.*")
    assert (total(found, rf"{loads}\.MULTICAST") > 0) == (launch.cluster > 1)
    assert total(found, r"USETMAXREG\.DEALLOC.*") == total(found, r"USETMAXREG\.TRY_ALLOC.*") == 1


@dataclass(frozen=True)
class Case:
    """The kernels of a product of terms."""

    tile: tuple[int, int]
    layout: str  # of the operands as the kernel has them
    depth: int
    accuracy: Accuracy = "fp32"
    cluster: int = 1
    split_k: int = 1
    swap_ab: bool = False
    rank: int = 0  # of the batch
    odd: bool = False  # an output that TMA cannot write
    rs: bool = False  # A is split by the product itself
    full_range: bool = False

    def __str__(self) -> str:
        words = [f"{'x'.join(map(str, self.tile))} {self.layout} {self.accuracy} K {self.depth} split_k {self.split_k}"]
        return " ".join(words + [name for name in ("swap_ab", "full_range") if getattr(self, name)])

    @property
    def plan(self) -> Plan:
        m, n = (4096, 100 if self.rs else 2048)
        batch = (3,) * self.rank
        a = laid_out(*batch, m, self.depth, layout=self.layout[0])
        b = laid_out(*batch[:1], self.depth, n, layout=self.layout[1])
        out = meta(*batch, m, n + self.odd)[..., :n]
        if self.swap_ab:
            a, b, out = b.mT, a.mT, out.mT
        c = hopper.Configuration(*self.tile, self.cluster, self.split_k, self.swap_ab, rs=self.rs)
        return planned(Problem.of(a, b, out=out, accuracy=self.accuracy), c)

    @property
    def launch(self) -> KernelLaunch:
        return products_of(self.plan)[self.full_range]


def cases() -> list[Case]:
    """Every tile for sums that are promoted; the widest ones for a single step along K; and single terms."""
    found = []
    for i, tile in enumerate(tiles.PROMOTED_TILES):
        layout = LAYOUTS[i % 4] if tile[1] > 8 else "nt"
        depth, cluster = 1024 if i % 2 else 256, 2 if i % 3 == 0 and tile[1] > 8 else 1
        found.append(Case(tile, layout, depth, cluster=cluster, rank=i % 3, odd=i % 5 == 1))
    found += (Case((128, 256), x, 64, odd=odd) for x, odd in (("nn", False), ("tt", True)))
    found.append(Case((64, 256), "tn", 64))
    found += (Case((128, 256), x, 256, "tf32", cluster=2, rank=1) for x in ("nn", "tt"))
    return found


CASES = cases()


def full_range_tile(case: Case) -> tuple[int, int]:
    return catalogue.for_full_range((*case.tile, case.cluster), case.rs)[:2]


# Most tiles are narrower for the full range, and then the same: one of each tile, layout, accuracy and depth will do.
BY_FULL_RANGE_TILE = {(full_range_tile(case), case.layout, case.accuracy, case.depth): case for case in CASES}
FULL_RANGE_CASES = list(BY_FULL_RANGE_TILE.values())


def test_the_cases_have_all_tiles_and_layouts() -> None:
    assert {case.tile for case in CASES if case.depth > TILE_K} >= set(tiles.PROMOTED_TILES)
    assert {case.layout for case in CASES} == {case.layout for case in FULL_RANGE_CASES} == set(LAYOUTS)
    assert {full_range_tile(case) for case in CASES} == {full_range_tile(case) for case in FULL_RANGE_CASES}
    assert {case.cluster for case in CASES} == {case.cluster for case in FULL_RANGE_CASES} == {1, 2}
    kernels = [constants_of(case.plan.product.kernel, TermConstants) for case in CASES]
    assert {c.stationary_b for c in kernels} == {False, True}
    assert any(c.b_extent > c.tile_n for c in kernels)
    assert {c.out_store for c in kernels} == {Store.BOXES, Store.LINES, Store.DIRECT}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_of_terms_do_not_spill_and_use_the_tensor_cores(case: Case) -> None:
    ordinary, full_range = products_of(case.plan)
    launches = [ordinary, full_range] if case in FULL_RANGE_CASES else [ordinary]
    for launch, found in zip(launches, assert_nothing_spills(*launches), strict=True):
        assert launch.cluster == (1 if launch is full_range else case.cluster)
        assert_uses_the_tensor_cores(launch, found, full_range=launch is full_range)


# The tiles for the full range are 64 columns wide at most.
RS_CASES = [
    Case((128, 128), "nn", 1024, cluster=2, split_k=3, rs=True),
    Case((128, 128), "tt", 512, swap_ab=True, rs=True),
    Case((128, 112), "tn", 1024, rank=1, odd=True, rs=True),
    Case((128, 96), "nt", 1024, swap_ab=True, rs=True),
    Case((128, 64), "tt", 512, cluster=2, rs=True),
    Case((128, 32), "nn", 512, split_k=2, swap_ab=True, rs=True),
    Case((64, 128), "tn", 1024, split_k=2, rs=True),
    Case((64, 96), "nt", 512, cluster=2, odd=True, rs=True),
    Case((64, 64), "nn", 1024, rank=1, rs=True),
    Case((64, 32), "tt", 1024, cluster=2, swap_ab=True, rs=True),
    Case((64, 16), "nn", 512, rs=True),
    Case((64, 8), "tt", 1024, split_k=2, swap_ab=True, rs=True),
    Case((128, 128), "tn", 1024, cluster=2, full_range=True, rs=True),
    Case((128, 32), "nt", 512, split_k=2, swap_ab=True, full_range=True, rs=True),
    Case((64, 64), "nn", 1024, rank=1, odd=True, full_range=True, rs=True),
    Case((64, 8), "tt", 1024, full_range=True, rs=True),
]


def test_the_rs_cases_have_all_tiles_and_layouts() -> None:
    expected = {tile for tile in tiles.PROMOTED_TILES if tile[1] <= tiles._MAX_RS_TILE_N}
    assert {case.tile for case in RS_CASES if not case.full_range} == expected
    for full_range in (False, True):
        own = [case for case in RS_CASES if case.full_range == full_range]
        assert {case.layout for case in own} == set(LAYOUTS)
        for name in ("swap_ab", "odd", "depth", "cluster"):
            assert len({getattr(case, name) for case in own}) == 2
        assert {case.split_k > 1 for case in own} == {False, True}
        assert {product_constants(case.launch).a_mn_major for case in own} == {False, True}
    assert {product_constants(case.launch).with_least_product for case in RS_CASES} == {False, True}


@pytest.mark.parametrize("case", RS_CASES, ids=str)
def test_rs_products_do_not_spill_and_have_a_in_registers(case: Case) -> None:
    """And nothing writes to a register that a product under way may still read."""
    launch = case.launch
    assert launch.kernel.entry == "gemm_fp32_rs"
    assert launch.cluster == (1 if case.full_range else case.cluster)
    assert product_constants(launch).a_mn_major == (case.layout[0] == "t")
    text = machine_code.disassembled(launch.kernel)
    found = instructions_in(text)
    assert_runs_as_it_should(launch, found)
    assert_uses_the_tensor_cores(launch, found, full_range=case.full_range)
    assert machine_code.products_of_registers(text) == total(found, r"HGMMA.*")
    assert machine_code.overwritten_operands(text) == []
    # All products of a part, or of a whole step, are under way together.
    assert 3 * total(found, r"WARPGROUP\.DEPBAR.*") <= total(found, r"HGMMA.*")


# Vectors, elements side by side, and elements apart; along K and along the rows.
KINDS = {
    (False, Access.VECTORS): strided((200, 304), (304, 1)),
    (False, Access.ELEMENTS): strided((200, 304), (305, 1)),
    (False, Access.STRIDED): strided((200, 304), (700, 2)),
    (True, Access.VECTORS): strided((200, 304), (1, 200)),
    (True, Access.ELEMENTS): strided((200, 304), (1, 201)),
    (True, Access.STRIDED): strided((200, 304), (2, 500)),
}
KINDS_OF_SPLITS = [
    ((False, Access.VECTORS), (True, Access.ELEMENTS)),
    ((True, Access.STRIDED), (False, Access.ELEMENTS)),
    ((True, Access.VECTORS), (False, Access.STRIDED)),
]


@pytest.mark.parametrize("kinds", KINDS_OF_SPLITS, ids=str)
def test_splits_of_every_kind_do_not_spill(kinds: tuple[tuple[bool, Access], ...]) -> None:
    assert {kind for each in KINDS_OF_SPLITS for kind in each} == KINDS.keys()
    a, b = (KINDS[kind] for kind in kinds)
    splits = planned(Problem.of(a, b.T), hopper.Configuration(64, 64)).launches[:4:2]
    for launch, found in zip(splits, assert_nothing_spills(*splits), strict=True):
        is_any = split_constants(launch).full_range or any(access is Access.STRIDED for _, access in kinds)
        assert [(x.mn_major, x.access) for x in kinds_of(launch)] == [
            (mn_major, Access.ANY if is_any else access) for mn_major, access in kinds
        ]
        assert [o.has_vectors for o in both_operands(launch)] == [access is Access.VECTORS for _, access in kinds]
        has_vectors = is_any or any(access is Access.VECTORS for _, access in kinds)
        assert (total(found, r"LDG\.E\.128.*") > 0) == has_vectors
        assert total(found, r"STG\.E\.64.*") > 0


@pytest.mark.parametrize(("layout", "split_k"), [("n", 3), ("t", 1)])
def test_splits_that_leave_a_to_the_product_do_not_spill(layout: str, split_k: int) -> None:
    problem = Problem.of(laid_out(3, 400, 1024, layout=layout), meta(1024, 20))
    splits = planned(problem, hopper.Configuration(64, 32, split_k=split_k, rs=True)).launches[:4:2]
    for launch in splits:
        a, _ = both_operands(launch)
        c = split_constants(launch)
        assert (c.a_is_rs, c.a.mn_major, a.parts) == (True, layout == "t", split_k)
    assert_nothing_spills(*splits)


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_splits_of_long_rows_and_of_batches_do_not_spill(accuracy: Accuracy) -> None:
    problem = Problem.of(meta(3, 1, 4, 70000), meta(2, 70000, 5), accuracy=accuracy)
    splits = planned(problem, hopper.Configuration(64, 16)).launches[:4:2]
    for launch in splits:
        assert all(o.k_chunks > 1 and o.tasks > o.row_blocks for o in both_operands(launch))
    assert_nothing_spills(*splits)


@pytest.mark.parametrize("product", suites.load("seeds"), ids=str)
@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_the_products_that_it_was_made_for_get_the_tensor_cores(product: suites.Product, accuracy: Accuracy) -> None:
    a, b = product.operands("meta")
    plan = choose(Problem.of(a, b, accuracy=accuracy), H200)
    assert plan.name.startswith("hopper ")
    pair = ["split", "gemm_fp32_rs" if is_rs(plan) else "gemm_fp32"]
    assert entries(plan)[:4] == [*pair, *pair]
    for device in KNOWN_GPUS.values():
        problem = Problem.of(a, b, accuracy=accuracy)
        is_split = device.capability == (9, 0) or fp32_mma.rejects(problem, device) is None
        assert (entries(choose(problem, device))[0] == "split") == is_split


def test_sums_in_float32_alone_are_left_to_the_cuda_cores() -> None:
    problem = Problem.of(meta(4096, 4096), meta(4096, 4096), accuracy="ieee")
    assert "'ieee'" in str(hopper.rejects(problem, H200))
    assert choose(problem, H200).name.startswith("simt")


def corrects_bias(a: torch.Tensor, b: torch.Tensor, configuration: hopper.Configuration | None = None) -> list[bool]:
    """Whether the scales of `a` do, and those of `b`."""
    problem = Problem.of(a, b, may_mix=a.dtype != b.dtype)
    plan = choose(problem, H200) if configuration is None else hopper.plan(problem, H200, configuration)
    found = [bool(each.corrects_bias) for each in both_operands(plan.launches[0])]
    return found[::-1] if is_swapped(plan) else found


def test_one_operand_corrects_the_bias_of_what_is_cut_off() -> None:
    a, b = meta(2048, 2048), meta(2048, 2048)
    assert corrects_bias(a, b) == [False, True]
    rs = hopper.Configuration(128, 128, rs=True)
    assert corrects_bias(a, b[:, :256].contiguous(), rs) == [False, True]
    # B is split by the product, which reads its scales as powers of two.
    assert corrects_bias(a[:256], b, replace(rs, swap_ab=True)) == [True, False]
    # 16-bit numbers have one term.
    assert corrects_bias(a, b.half()) == [False, False]
    assert corrects_bias(a.half(), b) == [False, True]
    full_range = choose(Problem.of(a, b), H200).launches[2]
    assert split_constants(full_range).full_range
    assert not any(each.corrects_bias for each in both_operands(full_range))


@pytest.mark.parametrize("first", (False, True))
def test_a_packed_operand_corrects_the_bias_if_it_is_the_second(first: bool) -> None:
    problem = Problem.of(meta(2048, 2048), meta(2048, 2048), packed=(first, not first))
    packing = hopper.packing(problem, H200)
    assert packing is not None
    other = choose(problem, H200).launches[0]  # splits the operand that is not packed
    splits = [parameters_of(launch, fp32_split.Parameters) for launch in (packing.launches[0], other)]
    assert [(p.count, p.operands[0].corrects_bias) for p in splits] == [(1, not first), (1, first)]
