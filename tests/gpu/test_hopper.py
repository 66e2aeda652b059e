"""The tensor-core products of 16-bit floats, on a GPU of compute capability 9.0: exact on small integers in every tile,
layout and way to store, and as accurate as torch's on other numbers."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from guarded import Guarded, assert_exact, assert_same, contiguous_strides, few_sms
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launched import entries
from strategies import strides_for

import tilesmith
from tilesmith.bench.errors import error
from tilesmith.core.device import Device, installed
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.planner import choose
from tilesmith.runtime.executor import compiled

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BFLOAT16, FLOAT16]
LAYOUTS = ["nn", "nt", "tn", "tt"]
# m, k, n: no tile is full, and the last step along K is short. Lines are aligned, so nothing is realigned.
EDGES = [(264, 200, 296), (136, 72, 520)]


def placed(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, shift: int = 0) -> Guarded:
    """Small integers, with which sums in float32 are exact, in the midst of NaNs."""
    guarded = Guarded.empty(shape, strides, dtype, shift)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    guarded.tensor[distinct] = torch.randint(-2, 3, tuple(shape), device="cuda").to(dtype)[distinct]
    return guarded


def ints(*shape: int, dtype: torch.dtype = BFLOAT16) -> Guarded:
    return placed(shape, contiguous_strides(shape), dtype)


def matrix(rows: int, columns: int, layout: str = "n", dtype: torch.dtype = BFLOAT16) -> Guarded:
    return placed((rows, columns), (columns, 1) if layout == "n" else (1, rows), dtype)


def exact(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (a.float() @ b.float()).to(dtype)


def planned(
    configuration: hopper.Configuration, a: Guarded, b: Guarded, out: Guarded, device: Device | None = None
) -> Plan:
    device = device or few_sms()
    problem = Problem.of(a.tensor, b.tensor, out=out.tensor, out_dtype=out.tensor.dtype)
    assert hopper.unsuited(problem, device, configuration) is None
    return hopper.plan(problem, device, configuration)


def assert_exact_as_chosen(a: Guarded, b: Guarded, out: Guarded | None = None, dtype: torch.dtype = BFLOAT16) -> Plan:
    """So does this family's cheapest plan, and the one that the planner chooses."""
    expected = exact(a.tensor, b.tensor, dtype)
    own_out = None if out is None else out.tensor
    cheapest = hopper.cheapest(Problem.of(a.tensor, b.tensor, out=own_out, out_dtype=dtype), installed(0))
    assert cheapest is not None
    plan = cheapest.plan()
    for run in (compiled(plan, 0), partial(tilesmith.matmul, out_dtype=dtype)):
        if out is None:
            assert_same(run(a.tensor, b.tensor), expected)
        else:
            out.tensor.fill_(float("nan"))
            run(a.tensor, b.tensor, out=out.tensor)
            assert_same(out.tensor, expected)
            out.assert_outside_untouched()
    a.assert_outside_untouched()
    b.assert_outside_untouched()
    return plan


def named(tile: tuple[int, int]) -> str:
    return "{}x{}".format(*tile)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", tiles.TILES, ids=named)
def test_every_tile_and_layout_is_exact(tile: tuple[int, int], layout: str) -> None:
    if tile[1] == 8:
        layout = layout[0] + "t"  # no product instruction has so narrow a B by rows
    c = hopper.Configuration(*tile)
    # Of each layout one type has a result like its own and the other one a float32 result, in turn: all four are many
    # kernels to compile.
    wide = DTYPES[(tiles.TILES.index(tile) + LAYOUTS.index(layout)) % 2]
    for (m, k, n), dtype in itertools.product(EDGES, DTYPES):
        a, b = matrix(m, k, layout[0], dtype), matrix(k, n, layout[1], dtype)
        out = Guarded.empty((m, n), (n, 1), FLOAT32 if dtype == wide else dtype)
        plan = planned(c, a, b, out)
        assert entries(plan) == ["gemm"]
        assert_exact(plan, a, b, out)


@pytest.mark.parametrize("tile", [tile for tile in tiles.TILES if tile[1] > 8], ids=named)
def test_every_tile_in_clusters_is_exact(tile: tuple[int, int]) -> None:
    layout = LAYOUTS[tiles.TILES.index(tile) % 4]
    c = hopper.Configuration(*tile, cluster=2)
    for m, k, n in [*EDGES, (64, 640, 1000)]:  # the last one leaves the second block of a cluster without rows
        a, b = matrix(m, k, layout[0]), matrix(k, n, layout[1])
        out = Guarded.empty((m, n), (n, 1), BFLOAT16)
        assert_exact(planned(c, a, b, out), a, b, out)


@pytest.mark.parametrize(
    ("tile", "along_m"),
    [*((tile, False) for tile in tiles.TILES), *((tile, True) for tile in [(128, 256), (128, 96), (64, 16), (64, 8)])],
)
def test_every_tile_stores_lines_that_start_anywhere(tile: tuple[int, int], along_m: bool) -> None:
    a, b = matrix(261, 72), matrix(72, 293, "t")
    for gap, shift in itertools.product((0, 2), (0, 1)):
        strides = (1, 261 + gap) if along_m else (293 + gap, 1)
        out = Guarded.empty((261, 293), strides, BFLOAT16, shift)
        assert_exact(planned(hopper.Configuration(*tile), a, b, out), a, b, out)


@pytest.mark.parametrize("along_m", [False, True])
@pytest.mark.parametrize("tile", [(128, 192), (64, 8)], ids=named)
def test_float32_lines_start_anywhere_too(tile: tuple[int, int], along_m: bool) -> None:
    a, b = matrix(261, 72), matrix(72, 293, "t")
    for shift in (0, 1):
        out = Guarded.empty((261, 293), (1, 263) if along_m else (295, 1), FLOAT32, shift)
        assert_exact(planned(hopper.Configuration(*tile), a, b, out), a, b, out)


@pytest.mark.parametrize("out_dtype", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("tile", [(128, 256), (64, 192)], ids=named)
def test_one_step_along_k(tile: tuple[int, int], out_dtype: torch.dtype) -> None:
    """Such products store more than they do anything else, and have their own way to do so."""
    for (m, n), gap in itertools.product([(1000, 512), (392, tile[1] - 8), (1, 512)], (0, 16)):
        a, b = matrix(m, 64), matrix(64, n)
        out = Guarded.empty((m, n), (n + gap, 1), out_dtype)
        assert_exact(planned(hopper.Configuration(*tile), a, b, out), a, b, out)


@pytest.mark.parametrize("n", [30, 70, 260, 262])
def test_one_step_along_k_stays_inside_of_lines_that_end_anywhere(n: int) -> None:
    """Aligned lines, of which the last vector is not full."""
    a, b = matrix(300, 64), placed((64, n), (-(-n // 8) * 8, 1), BFLOAT16)
    out = Guarded.empty((300, n), (-(-n // 8) * 8 + 8, 1), BFLOAT16)
    for tile in [(64, 32), (128, 64)] if n > 32 else [(64, 32)]:
        assert_exact(planned(hopper.Configuration(*tile), a, b, out), a, b, out)
    assert_exact_as_chosen(a, b, out)


@pytest.mark.parametrize(
    ("c", "layout"),
    [
        (hopper.Configuration(64, 32, split_k=3), "nn"),
        (hopper.Configuration(128, 256, cluster=2, split_k=2), "tt"),
        (hopper.Configuration(64, 128, split_k=7, swap_ab=True), "nt"),
        (hopper.Configuration(64, 96, cluster=2, split_k=5), "tn"),
    ],
    ids=str,
)
def test_parts_of_k_are_added_exactly(c: hopper.Configuration, layout: str) -> None:
    a, b = matrix(136, 64 * 7 + 8, layout[0]), matrix(64 * 7 + 8, 264, layout[1])
    for out_dtype, strides in itertools.product((BFLOAT16, FLOAT32), ((264, 1), (265, 1), (1, 136), (528, 2))):
        out = Guarded.empty((136, 264), strides, out_dtype)
        plan = planned(c, a, b, out)
        assert entries(plan) == ["gemm", "split_k_reduce"]
        assert plan.split_k == c.split_k
        assert_exact(plan, a, b, out)


@pytest.mark.parametrize(
    ("c", "rows", "layout"),
    [
        (hopper.Configuration(64, 8, swap_ab=True), 5, "n"),
        (hopper.Configuration(64, 16, cluster=2, swap_ab=True), 9, "t"),
        (hopper.Configuration(128, 96, cluster=2, swap_ab=True), 90, "n"),
        (hopper.Configuration(128, 256, swap_ab=True), 250, "t"),
    ],
    ids=str,
)
def test_the_transposed_product_is_exact(c: hopper.Configuration, rows: int, layout: str) -> None:
    a, b = matrix(rows, 328), matrix(328, 520, layout)
    for strides in ((520, 1), (521, 1), (1, 256)) if rows == 90 else ((520, 1), (521, 1)):
        out = Guarded.empty((rows, 520), strides, BFLOAT16)
        assert_exact(planned(c, a, b, out), a, b, out)


def test_a_long_k() -> None:
    plan = assert_exact_as_chosen(matrix(128, 65536 + 8), matrix(65536 + 8, 136), dtype=FLOAT32)
    assert plan.split_k > 1


@pytest.mark.parametrize("k", range(1, 71))
def test_every_short_k(k: int) -> None:
    for layout in ("nn", "tt"):
        assert_exact_as_chosen(matrix(33, k, layout[0]), matrix(k, 40, layout[1]))


@pytest.mark.parametrize("m", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 40])
def test_single_rows_and_columns(m: int, n: int) -> None:
    for k, layout in itertools.product((1, 70), ("nn", "tt")):
        assert_exact_as_chosen(matrix(m, k, layout[0]), matrix(k, n, layout[1]))
    out = Guarded.empty((m, n), (n + 3, 1), BFLOAT16, 1)
    assert_exact_as_chosen(matrix(m, 70), matrix(70, n), out)


ODD_STRIDES = [
    *(((77, 1), 0), ((77, 1), 1), ((80, 1), 3), ((80, 1), 8), ((79, 1), 7), ((1, 77), 0)),
    *(((1, 77), 5), ((160, 2), 0), ((3, 231), 1), ((1, 1), 0), ((8, 1), 0)),
]


@pytest.mark.parametrize(("strides", "shift"), ODD_STRIDES)
def test_operands_with_odd_strides(strides: tuple[int, int], shift: int) -> None:
    if strides[0] == strides[1] or strides == (8, 1):  # windows that slide over a line: each element is in many rows
        line = placed((1000,), (1,), BFLOAT16)
        own = Guarded(line.tensor.as_strided((75, 75), strides), line._buffer, line._is_inside)
    else:
        own = placed((75, 75), strides, BFLOAT16, shift)
    assert_exact_as_chosen(own, matrix(75, 99))
    assert_exact_as_chosen(matrix(99, 75), own)
    assert_exact_as_chosen(own, own)


@pytest.mark.parametrize("length", [1023, 1025, 5000])
def test_long_odd_lines(length: int) -> None:
    for shift in (0, 1, 7):
        a, b = placed((9, length), (length + 3, 1), BFLOAT16, shift), matrix(length, 24)
        assert "realign" in entries(assert_exact_as_chosen(a, b))


@pytest.mark.parametrize("dtype", [*DTYPES, FLOAT32], ids=str)
@pytest.mark.parametrize(("strides", "shift"), [*ODD_STRIDES[:-2], ((88, 1), 4), ((1, 88), 0), ((1, 88), 1)])
def test_outputs_with_odd_strides(strides: tuple[int, int], shift: int, dtype: torch.dtype) -> None:
    operands = FLOAT16 if dtype == FLOAT16 else BFLOAT16
    for m, n in ((75, 75), (72, 70)):
        a, b = matrix(m, 136, dtype=operands), matrix(136, n, dtype=operands)
        assert_exact_as_chosen(a, b, Guarded.empty((m, n), strides, dtype, shift), dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((3, 40, 72), (3, 72, 40)), ((3, 37, 71), (3, 71, 35)), ((3, 40, 72), (72, 40)), ((40, 72), (3, 72, 40))),
        *(((2, 1, 40, 72), (3, 72, 40)), ((3, 37, 71), (2, 1, 71, 35)), ((3, 1, 40, 72), (2, 1, 4, 72, 40))),
        *(((3, 1, 37, 71), (2, 1, 4, 71, 35)), ((2, 1, 4, 40, 72), (3, 1, 72, 40))),
        *(((2, 3, 4, 40, 72), (2, 3, 4, 72, 40)), ((500, 8, 16), (500, 16, 8)), ((5, 1, 72), (5, 72, 40))),
        *(((2, 3, 72), (72,)),),
    ],
    ids=str,
)
def test_batches_and_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = ints(*a), ints(*b)
    shape = torch.matmul(x.tensor, y.tensor).shape
    assert_exact_as_chosen(x, y, Guarded.empty(shape, contiguous_strides(shape), BFLOAT16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(512, 512, 512), (5, 4096, 4096), (1000, 999, 1001), (64, 20000, 64)], ids=str
)
def test_errors_are_no_larger_than_torchs(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    for draw in (torch.rand, torch.randn):
        a, b = draw(m, k, device="cuda").to(dtype), draw(k, n, device="cuda").to(dtype)
        ours, torchs = error(tilesmith.matmul(a, b), a, b), error(torch.matmul(a, b), a, b)
        assert ours.norm <= 1.1 * torchs.norm, f"{ours} is more than {torchs}"
        wide = error(tilesmith.matmul(a, b, out_dtype=FLOAT32), a, b)
        assert wide.norm <= 1e-4, f"{wide} is more than sums in float32 have"


@pytest.mark.parametrize(
    ("m", "k", "n"), [(300, 500, 400), (8, 4096, 2048), (64, 32768, 64), (75, 1001, 131), (256, 64, 4096)], ids=str
)
def test_a_result_never_moves_between_runs(m: int, k: int, n: int) -> None:
    a, b = torch.randn(m, k, device="cuda").to(BFLOAT16), torch.randn(k, n, device="cuda").to(BFLOAT16)
    if k in (500, 32768):  # without parts of K, and with them
        assert (choose(Problem.of(a, b), installed(0)).split_k > 1) == (k == 32768)
    for out_dtype in (BFLOAT16, FLOAT32):
        first = tilesmith.matmul(a, b, out_dtype=out_dtype)
        for _ in range(5):
            assert_same(tilesmith.matmul(a, b, out_dtype=out_dtype), first)


@pytest.mark.parametrize(
    ("k", "n", "out_dtype"), [(200, 520, BFLOAT16), (64, 1000, BFLOAT16), (203, 333, FLOAT32)], ids=str
)
def test_a_row_does_not_depend_on_the_other_rows(k: int, n: int, out_dtype: torch.dtype) -> None:
    a, b = torch.randn(400, k, device="cuda").to(BFLOAT16), torch.randn(k, n, device="cuda").to(BFLOAT16)
    whole = tilesmith.matmul(a, b, out_dtype=out_dtype)
    names = set()
    for rows in (1, 7, 16, 64, 65, 130, 257):
        plans = [choose(Problem.of(x, b, out_dtype=out_dtype), installed(0)) for x in (a, a[:rows])]
        assert [plan.split_k for plan in plans] == [1, 1]  # K is too short for more
        names |= {plan.name for plan in plans}
        assert_same(tilesmith.matmul(a[:rows], b, out_dtype=out_dtype), whole[:rows])
    assert len(names) > 2  # as different as their tiles may be


def test_the_tile_does_not_change_the_result() -> None:
    a = torch.randn(200, 520, device="cuda").to(FLOAT16)
    b = torch.randn(264, 520, device="cuda").to(FLOAT16).T
    problem = Problem.of(a, b, out_dtype=FLOAT32)
    results = []
    for tile, cluster, swap_ab in [
        ((128, 256), 1, False),
        ((64, 8), 1, False),
        ((64, 96), 2, False),
        ((128, 96), 1, True),
    ]:
        c = hopper.Configuration(*tile, cluster=cluster, swap_ab=swap_ab)
        assert hopper.unsuited(problem, installed(0), c) is None
        results.append(compiled(hopper.plan(problem, installed(0), c), 0)(a, b))
    for result in results[1:]:
        assert_same(result, results[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("k", [70, 72, 640])
@pytest.mark.parametrize("at", [0, -1])
def test_nan_and_inf_stay_in_their_row_and_column(value: float, k: int, at: int) -> None:
    for pitch in (k, k + 8, k + 3):
        a, b = placed((130, k), (pitch, 1), BFLOAT16), placed((k, 72), (72, 1), BFLOAT16)
        b.tensor[at] = 1.0
        clean = exact(a.tensor, b.tensor, BFLOAT16)
        a.tensor[3, at] = value
        result = tilesmith.matmul(a.tensor, b.tensor)
        torch.testing.assert_close(result[3], torch.full_like(result[3], value), rtol=0, atol=0, equal_nan=True)
        others = [row for row in range(130) if row != 3]
        assert_same(result[others], clean[others])

        # The transposed product sees the same.
        result = tilesmith.matmul(b.tensor.mT, a.tensor.mT)
        assert_same(result[:, others], clean.mT[:, others])
        torch.testing.assert_close(result[:, 3], torch.full_like(result[:, 3], value), rtol=0, atol=0, equal_nan=True)


def test_results_too_large_for_the_type_become_infinite() -> None:
    a = torch.full((16, 64), 100.0, dtype=FLOAT16, device="cuda")
    assert torch.isinf(tilesmith.matmul(a, a.mT)).all()
    assert_same(tilesmith.matmul(a, a.mT, out_dtype=FLOAT32), torch.full((16, 16), 640000.0, device="cuda"))
    assert_same(tilesmith.matmul(a, -a.mT), torch.full((16, 16), float("-inf"), dtype=FLOAT16, device="cuda"))


def test_results_round_to_nearest_even() -> None:
    """257 lies between two bfloat16, 2049 between two float16, and so does every odd multiple of theirs."""
    for dtype, first in ((BFLOAT16, 257), (FLOAT16, 2049)):
        a = torch.tensor([[float(first - 1), 1.0], [float(first + 1), 1.0], [float(1 - first), -1.0]], device="cuda")
        b = torch.ones(2, 8, device="cuda")
        expected = (a @ b).to(dtype)
        assert_same(tilesmith.matmul(a.to(dtype), b.to(dtype)), expected)
        assert expected[0, 0].item() == first - 1
        assert expected[1, 0].item() == first + 3


def test_products_that_feed_each_other_wait_for_each_other() -> None:
    """A launch may start before the one before it ends, but not read what that has not written yet."""
    for size in (75, 264, 1000):
        x = torch.eye(size, dtype=BFLOAT16, device="cuda").roll(1, 0)  # moves rows down by one
        y = ints(size, size).tensor
        result = y
        for _ in range(20):
            result = tilesmith.matmul(x, result)
        assert_same(result, y.roll(20, 0))


Configuration = hopper.Configuration
KINDS = {
    "pairs": ((520, 328), (328, 776), Configuration(128, 256, cluster=2)),
    "pairs, odd": ((521, 327), (327, 775), Configuration(128, 256, cluster=2)),
    "more tiles than blocks": ((128 * 40 + 8, 72), (72, 1032), Configuration(128, 256, cluster=2)),
    "more tiles than blocks, odd": ((128 * 20 + 1, 391), (391, 2057), Configuration(128, 256)),
    "three consumers": ((192 * 30 + 8, 328), (328, 1496), Configuration(192, 176, cluster=2)),
    "three consumers, batch": ((5, 1096, 200), (5, 200, 1096), Configuration(192, 160, cluster=2)),
    "three consumers, split": ((584, 1000), (1000, 520), Configuration(192, 160, split_k=3)),
    "split": ((200, 1000), (1000, 136), Configuration(128, 96, split_k=3)),
    "split, pairs, odd": ((201, 999), (999, 137), Configuration(64, 64, cluster=2, split_k=5)),
    "one step": ((128 * 300, 64), (64, 264), Configuration(128, 256)),
    "one step, odd": ((2001, 63), (63, 261), Configuration(128, 128)),
    "one step, several columns": ((128 * 140, 40), (40, 1032), Configuration(64, 192)),
    "few rows": ((16, 1000), (1000, 520), Configuration(64, 16, cluster=2, swap_ab=True)),
    "few rows, odd": ((17, 999), (999, 521), Configuration(128, 32, split_k=3, swap_ab=True)),
    "one row": ((1, 1000), (1000, 520), Configuration(64, 16, swap_ab=True)),
    "one column": ((520, 1000), (1000, 1), Configuration(64, 8)),
    "K is one": ((130, 1), (1, 264), Configuration(128, 64)),
    "batch": ((3, 136, 200), (3, 200, 264), Configuration(128, 128)),
    "batch, odd": ((3, 137, 199), (3, 199, 263), Configuration(128, 128, cluster=2)),
    "batch of one step": ((300, 136, 64), (300, 64, 72), Configuration(128, 64)),
    "broadcast": ((2, 1, 3, 136, 72), (4, 1, 72, 264), Configuration(64, 128)),
    "broadcast, odd, split": ((2, 1, 3, 135, 523), (4, 1, 523, 77), Configuration(64, 32, split_k=2)),
    "broadcast, pairs": ((3, 1, 136, 136), (2, 1, 2, 136, 88), Configuration(128, 64, cluster=2)),
    "broadcast, pairs, split": ((3, 1, 136, 136), (2, 1, 2, 136, 88), Configuration(64, 64, cluster=2, split_k=2)),
    "broadcast, few rows": ((3, 1, 30, 136), (4, 136, 88), Configuration(64, 32, swap_ab=True)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_layout_and_type(kind: str) -> None:
    """Of both sizes of results, on all SMs or on few of them."""
    a_shape, b_shape, c = KINDS[kind]
    for i, layout in enumerate(LAYOUTS):
        dtype = DTYPES[i % 2]
        a, b = (
            ints(*shape, dtype=dtype) if x == "n" else transposed(ints(*shape[:-2], *shape[:-3:-1], dtype=dtype))
            for shape, x in zip((a_shape, b_shape), layout, strict=True)
        )
        shape = (*torch.broadcast_shapes(a_shape[:-2], b_shape[:-2]), a_shape[-2], b_shape[-1])
        for out_dtype, device in ((dtype, installed(0)), (FLOAT32, few_sms())):
            out = Guarded.empty(shape, contiguous_strides(shape), out_dtype)
            assert_exact(planned(c, a, b, out, device), a, b, out)


def transposed(guarded: Guarded) -> Guarded:
    return replace(guarded, tensor=guarded.tensor.mT)


sizes = st.one_of(st.sampled_from([1, 8, 33, 70]), st.integers(1, 600))
depths = st.one_of(sizes, st.integers(1, 3000))


@pytest.mark.parametrize(
    ("batch", "dtype", "out_dtype"),
    [(((), ()), BFLOAT16, BFLOAT16), (((3, 1), (2, 1, 2)), FLOAT16, FLOAT32)],
    ids=["matrices", "batches"],
)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), m=sizes, k=depths, n=sizes)
def test_any_strides(
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    data: st.DataObject,
    m: int,
    k: int,
    n: int,
) -> None:
    def operand(shape: tuple[int, ...]) -> Guarded:
        strides, shift = data.draw(strides_for(shape))
        return placed(shape, strides, dtype, shift)

    a, b = operand((*batch[0], m, k)), operand((*batch[1], k, n))
    shape = (*torch.broadcast_shapes(*batch), m, n)
    out = None
    if data.draw(st.booleans()):
        strides, shift = data.draw(strides_for(shape))
        out = Guarded.empty(shape, strides, out_dtype, shift)
    assert_exact_as_chosen(a, b, out, out_dtype)
