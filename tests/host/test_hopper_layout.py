"""16-bit products of Hopper's tensor cores with any sizes and strides: the kernels themselves, in the emulator, against
the exact products of integers. Whatever lies between elements is NaN; it is not read, and stays."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, integers, placed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launched import constants_of, parameters_of
from strategies import batches, strides_for

from tilesmith import emulator
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels import realign
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.hopper.constants import CommonConstants
from tilesmith.kernels.output import Store

pytestmark = pytest.mark.usefixtures("emulator_cache")

Configuration = hopper.Configuration
BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
FEW_SMS = replace(H200, sm_count=5)  # so that a block has several tiles
LAYOUTS = ["nn", "nt", "tn", "tt"]
SMALL = Configuration(64, 32)
PAIR = Configuration(128, 64, cluster=2)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def dense(*shape: int, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    return placed(integers(*shape, dtype=dtype, seed=math.prod(shape)), contiguous(shape))


def matrix(rows: int, columns: int, layout: str = "n") -> torch.Tensor:
    return dense(rows, columns) if layout == "n" else dense(columns, rows).T


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    return placed(integers(*shape, dtype=BFLOAT16, seed=math.prod(shape)), strides, offset)


def assert_right(
    configuration: Configuration,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    device: Device = H200,
    seed: int | None = None,
) -> Plan:
    """The plan of this configuration gives exactly the product, and writes nothing else."""
    expected = (a.double() @ b.double()).to(out_dtype or a.dtype)
    if out is None:
        out = empty(expected.shape, contiguous(expected.shape), expected.dtype)
    out.fill_(math.nan)
    problem = Problem.of(a, b, out=out, out_dtype=out_dtype)
    assert hopper.rejects(problem, device) is None
    plan = hopper.plan(problem, device, fitted(configuration, problem, device))
    emulator.run(plan, a, b, out=out, seed=seed)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert_nothing_else_written(out)
    return plan


def fitted(configuration: Configuration, problem: Problem, device: Device) -> Configuration:
    """The same; or, where its tile is too narrow for a B by rows or to be shared, with the next one that is not; or,
    where it has too many rows for such results, with fewer."""
    wide_enough = sorted((-m, n) for m, n in tiles.TILES if m <= configuration.tile_m and n >= configuration.tile_n)
    found = (replace(configuration, tile_m=-m, tile_n=n) for m, n in wide_enough)
    return next(c for c in found if hopper.unsuited(problem, device, c) is None)


@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda tile: "{}x{}".format(*tile))
def test_every_tile_multiplies_with_edges(tile: tuple[int, int]) -> None:
    """In one of the layouts, with or without a cluster, and in several orders of its threads."""
    which = tiles.TILES.index(tile)
    layout = "tt" if tile[1] == 8 else LAYOUTS[which % 4]
    c = Configuration(*tile, 1 if tile[1] == 8 else 1 + which // 4 % 2)
    for (m, k, n), seed in (((136, 72, 264), None), ((200, 200, 40), 1), ((72, 136, 80), 2)):
        a, b = matrix(m, k, layout[0]), matrix(k, n, layout[1])
        assert_right(c, a, b, seed=seed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("c", [SMALL, PAIR], ids=str)
def test_odd_sizes_in_all_layouts_are_realigned(c: Configuration, layout: str) -> None:
    for (m, k, n), seed in (((69, 75, 99), None), ((131, 201, 33), 1), ((7, 321, 67), None)):
        plan = assert_right(c, matrix(m, k, layout[0]), matrix(k, n, layout[1]), seed=seed)
        assert plan.launches[0].kernel.entry == "realign"
        assert len({*parameters_of(plan.launches[0], realign.Parameters).copies}) == 2


@pytest.mark.parametrize("k", [1, 5, 64, 65])
def test_single_rows_columns_and_steps(k: int) -> None:
    for m, n in itertools.product((1, 2, 65), (1, 8, 33)):
        assert_right(SMALL, matrix(m, k), matrix(k, n))
        assert_right(replace(SMALL, swap_ab=True), matrix(m, k), matrix(k, n, "t"))


@pytest.mark.parametrize(
    "c", [SMALL, PAIR, Configuration(192, 160, cluster=2), Configuration(64, 96, split_k=2)], ids=str
)
def test_blocks_with_several_tiles_cover_all_of_them(c: Configuration) -> None:
    """Few rows of tiles and many, of which the last are no whole raster group."""
    for (m, n), seed in (((150, 200), None), ((1300, 40), None), ((700, 72), 1)):
        plan = assert_right(c, matrix(m, 136), matrix(136, n), device=FEW_SMS, seed=seed)
        assert plan.product.grid[0] in (4, 5)


def test_a_ring_goes_round_many_times() -> None:
    """A stage is filled again three times, in a tile and from one to the next."""
    for c in (SMALL, PAIR):
        plan = assert_right(c, matrix(300, 2600), matrix(2600, 136), device=FEW_SMS, seed=1)
        assert constants_of(plan.product.kernel, CommonConstants).stages < 2600 // 64 // 2


@pytest.mark.parametrize("split_k", [2, 3, 7])
def test_parts_of_k_need_not_be_equal(split_k: int) -> None:
    k = 64 * 6 + 9
    for c in (SMALL, PAIR, Configuration(128, 32, swap_ab=True)):
        plan = assert_right(replace(c, split_k=split_k), matrix(70, k, "t"), matrix(k, 40))
        assert plan.split_k == split_k
        assert_right(replace(c, split_k=split_k), matrix(70, k, "t"), matrix(k, 40), out_dtype=FLOAT32)
    assert_right(replace(SMALL, split_k=split_k), dense(2, 1, 40, k), dense(3, k, 24), seed=2)


@pytest.mark.parametrize("split_k", [5, 12])
def test_parts_of_k_are_added_in_their_order(split_k: int) -> None:
    """By warps that take turns. 2^24 + 1 is 2^24 in float32, so nothing is left; in another order 1 would be."""
    a, b = torch.zeros(64, 64 * split_k, dtype=BFLOAT16), torch.ones(64 * split_k, 32, dtype=BFLOAT16)
    a[:, 64:256:64] = torch.tensor([2.0**24, 1.0, -(2.0**24)])
    plan = hopper.plan(Problem.of(a, b, out_dtype=FLOAT32), H200, replace(SMALL, split_k=split_k))
    assert (emulator.run(plan, a, b) == 0).all()


@pytest.mark.parametrize(
    ("strides", "offset"),
    [
        ((80, 1), 0),
        ((80, 1), 8),
        ((80, 1), 1),  # odd addresses
        ((77, 1), 0),
        ((77, 1), 3),
        ((79, 1), 7),
        ((160, 2), 0),  # every other element
        ((3, 217), 1),
        ((1, 80), 0),
        ((1, 77), 5),
        ((2, 154), 0),
        ((1, 1), 0),  # a window that slides
        ((8, 1), 0),
        ((1, 8), 0),
    ],
)
def test_operands_with_any_strides(strides: tuple[int, int], offset: int) -> None:
    for rows in (72, 70):
        own = strided((rows, rows), strides, offset)
        assert_right(SMALL, own, matrix(rows, 40))
        assert_right(SMALL, matrix(40, rows), own)
        assert_right(replace(PAIR, swap_ab=True), own, own.T)


@pytest.mark.parametrize("length", [3, 9, 257, 1030])
@pytest.mark.parametrize("offset", [0, 1, 7])
def test_lines_of_any_length_are_realigned(length: int, offset: int) -> None:
    """Some are shorter than a vector, and a warp may have parts of several."""
    for rows in (13, 1):
        a = strided((rows, length), (length + 3, 1), offset)
        assert_right(SMALL, a, matrix(length, 9))
        if length > 256:
            assert_right(replace(SMALL, split_k=3), a, matrix(length, 8))
    assert_right(replace(SMALL, swap_ab=True), matrix(5, 9), strided((9, length), (length, 1), offset))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((3, 40, 72), (3, 72, 40)), ((3, 37, 69), (3, 69, 35)), ((3, 40, 72), (72, 40))),
        *(((40, 72), (3, 72, 40)), ((37, 69), (3, 69, 35)), ((2, 1, 40, 72), (3, 72, 40))),
        *(((3, 40, 72), (2, 1, 72, 40)), ((3, 37, 69), (2, 1, 69, 35)), ((3, 1, 40, 72), (2, 1, 4, 72, 40))),
        *(((3, 1, 37, 69), (2, 1, 4, 69, 35)), ((2, 1, 4, 40, 72), (3, 1, 72, 40))),
        *(((2, 3, 4, 40, 72), (2, 3, 4, 72, 40)), ((5, 1, 69), (5, 69, 35)), ((69,), (5, 69, 35))),
        *(((5, 37, 69), (69,)),),
    ],
    ids=str,
)
def test_batches_and_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for device, c in ((H200, SMALL), (FEW_SMS, replace(SMALL, split_k=2))):
        assert_right(c, dense(*a), dense(*b), device=device)


@pytest.mark.parametrize("gap", [0, 8, 3])
def test_batches_with_gaps_transposes_and_expanded_dimensions(gap: int) -> None:
    a = strided((2, 3, 40, 136), (3 * (40 * 136 + gap), 40 * 136 + gap, 136, 1))
    b = strided((3, 136, 24), (24 * 136 + gap, 1, 136))
    for c in (SMALL, replace(PAIR, split_k=2)):
        plan = assert_right(c, a, b)
        assert plan.problem.batch == (2, 3)
        assert_right(c, a.transpose(0, 1).expand(3, 2, 40, 136), b.unsqueeze(1).expand(3, 2, 136, 24))
        assert_right(c, a[:, :1].expand(2, 3, 40, 136), b)
        assert_right(c, a, b[1:2].expand(3, 136, 24))


def test_rows_that_a_batch_became() -> None:
    b = matrix(72, 40)
    for strides in ((504, 72, 1), (511, 73, 1), (800, 72, 1)):
        a = strided((5, 7, 72), strides)
        for c in (SMALL, replace(SMALL, swap_ab=True)):
            assert_right(c, a, b)


LINES = [((88, 1), 0), ((88, 1), 4), ((75, 1), 1), ((78, 1), 0), ((1, 88), 0), ((1, 75), 1), ((3, 300), 1)]
MORE_LINES = [((88, 1), 8), ((88, 1), 1), ((75, 1), 0), ((1, 75), 0), ((1, 76), 2), ((150, 2), 0)]


@pytest.mark.parametrize(
    ("strides", "offset", "dtype"),
    [*((*each, BFLOAT16) for each in LINES + MORE_LINES), *((*each, FLOAT32) for each in LINES)],
    ids=str,
)
def test_outputs_with_any_strides(strides: tuple[int, int], offset: int, dtype: torch.dtype) -> None:
    for size in (72, 75, 70):
        a, b = matrix(size, 136), matrix(136, size)
        out = empty((size, size), strides, dtype, offset)
        for c in (SMALL, replace(PAIR, swap_ab=True)):
            assert_right(c, a, b, out, dtype)


@pytest.mark.parametrize(
    ("tile", "dtype", "along_m"),
    [
        *(((64, 8), BFLOAT16, True), ((64, 16), BFLOAT16, False), ((64, 64), BFLOAT16, False)),
        *(((64, 96), BFLOAT16, True), ((64, 96), FLOAT32, False)),
        *(((192, 176), BFLOAT16, False), ((192, 176), FLOAT32, True)),
    ],
    ids=str,
)
def test_chunks_of_every_width_are_stored_by_threads(tile: tuple[int, int], dtype: torch.dtype, along_m: bool) -> None:
    """Lines that start in the middle of a word, and end anywhere in a chunk."""
    a, b = matrix(131, 72), matrix(72, 259, "t")
    for width in (259, 257, 65, 64):
        out = empty((131, width), (1, 133) if along_m else (261, 1), dtype, 1)
        plan = assert_right(Configuration(*tile), a, b[:, :width], out, dtype)
        assert constants_of(plan.product.kernel, CommonConstants).out_store is Store.LINES


@pytest.mark.parametrize(
    ("tile_n", "dtype"), [(256, BFLOAT16), (256, FLOAT32), (192, FLOAT32), (64, BFLOAT16)], ids=str
)
def test_products_that_only_store_stay_inside_of_their_lines(tile_n: int, dtype: torch.dtype) -> None:
    """One step along K, and lines that start aligned wherever they end."""
    for width, rows, gap in itertools.product((8, 30, 64, 72, 136, 261), (1, 70), (0, 8)):
        out = empty((rows, width), (-(-width // 8) * 8 + gap, 1), dtype)
        assert_right(Configuration(64, tile_n), matrix(rows, 64), matrix(64, width), out, dtype, FEW_SMS)


@pytest.mark.parametrize("width", [1280, 1270, 1408, 2560])
def test_blocks_that_keep_their_columns_take_group_after_group(width: int) -> None:
    """There are more columns of tiles than blocks, and only some numbers of them make column groups of equal size."""
    for rows in (200, 70, 500):
        plan = assert_right(Configuration(128, 128), matrix(rows, 64), matrix(64, width), device=FEW_SMS)
        c = constants_of(plan.product.kernel, CommonConstants)
        assert c.out_store is Store.VECTORS if width % 8 == 0 else Store.LINES
        assert c.stationary_b == (width != 1408)  # eleven tiles side by side


@pytest.mark.parametrize("gap", [0, 8, 1])
def test_outputs_with_batches_in_any_order_of_dimensions(gap: int) -> None:
    a, b = dense(2, 1, 40, 72), dense(3, 72, 24)
    for order in itertools.permutations(range(4)):
        shape, strides, step = (2, 3, 40, 24), [0] * 4, 1
        for dimension in order:
            strides[dimension] = step
            step = step * shape[dimension] + gap
        assert_right(SMALL, a, b, empty(shape, strides, BFLOAT16))
    # Lines that are aligned in each matrix, but not from one to the next.
    assert_right(SMALL, a, b, empty((2, 3, 40, 24), (3 * (960 + gap), 960 + gap, 24, 1), BFLOAT16))


sizes = st.one_of(st.integers(1, 9), st.integers(1, 150), st.sampled_from([8, 64, 72, 128, 136]))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), m=sizes, k=sizes, n=sizes, batch=batches())
def test_any_shapes_and_strides(
    data: st.DataObject, m: int, k: int, n: int, batch: tuple[list[int], list[int]]
) -> None:
    """By what the planner would take, or could."""
    dtype = data.draw(st.sampled_from([BFLOAT16, FLOAT16]))
    out_dtype = data.draw(st.sampled_from([None, None, FLOAT32]))
    device = data.draw(st.sampled_from([H200, FEW_SMS]))

    def operand(shape: list[int]) -> torch.Tensor:
        strides, offset = data.draw(strides_for(shape, may_expand=True))
        return placed(integers(*shape, dtype=dtype), strides, offset)

    a, b = operand([*batch[0], m, k]), operand([*batch[1], k, n])
    shape = [*torch.broadcast_shapes(batch[0], batch[1]), m, n]
    strides, offset = data.draw(strides_for(shape, may_expand=False))
    out = empty(shape, strides, out_dtype or dtype, offset)
    problem = Problem.of(a, b, out=out, out_dtype=out_dtype)
    if reason := hopper.rejects(problem, device):
        assert "repeats" in reason
        assert 0 in (*a.stride(), *b.stride())
        return
    c = data.draw(st.sampled_from(list(tiles.configurations(problem, device))))
    more = Configuration(*data.draw(st.sampled_from(tiles.TILES)), split_k=data.draw(st.sampled_from([1, 1, 2])))
    assert_right(replace(c, split_k=1), a, b, out, out_dtype, device)
    if more.split_k <= math.ceil(k / 64):
        assert_right(more, a, b, out, out_dtype, device)
