"""The `sm90` kernels, exactly: sums of small integers have one value in float32, whatever their order."""

import itertools

import pytest
import torch
from guarded import Guarded, contiguous_strides
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilesmith
from tilesmith import device
from tilesmith.bench.errors import error
from tilesmith.kernels import sm90
from tilesmith.planner import choose
from tilesmith.prepared import prepare
from tilesmith.problem import Problem

Configuration = sm90.Configuration
HALF = [torch.bfloat16, torch.float16]


def integers(shape: tuple[int, ...], dtype: torch.dtype, transposed: bool = False) -> torch.Tensor:
    sizes = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    values = torch.randint(-2, 3, sizes, device="cuda").to(dtype)
    return values.mT if transposed else values


def assert_exact(a: torch.Tensor, b: torch.Tensor, c: Configuration, out_dtype: torch.dtype) -> None:
    """Twice, into poisoned memory with guards around it, and with guards around the operands."""
    guarded_a, guarded_b = Guarded.like(a), Guarded.like(b)
    expected = (a.float() @ b.float()).to(out_dtype)
    out = Guarded.empty(expected.shape, contiguous_strides(expected.shape), out_dtype)
    problem = Problem.of(guarded_a.tensor, guarded_b.tensor, out_dtype=out_dtype, out=out.tensor)
    assert sm90.unsuited(problem, device.installed(0), c) is None
    run = prepare(sm90.plan(problem, device.installed(0), c), 0)
    for _ in range(2):
        out.tensor.fill_(float("nan"))
        run(guarded_a.tensor, guarded_b.tensor, out.tensor)
        torch.testing.assert_close(out.tensor, expected, rtol=0, atol=0)
    for guarded in (guarded_a, guarded_b, out):
        guarded.assert_outside_untouched()


@pytest.mark.parametrize("tile", sm90.TILES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_tile_in_aligned_and_odd_memory(tile: tuple[int, int], layout: str) -> None:
    tile_m, tile_n = tile
    if tile_n == 8 and layout == "nn":
        layout = "nt"  # by rows, a tile of B is at least 16 wide
    c = Configuration(tile_m, tile_n)
    for m, k, n in [(2 * tile_m + 8, 200, 2 * tile_n + 8), (tile_m + 3, 129, tile_n + 5)]:
        a, b = integers((m, k), torch.bfloat16, layout[0] == "t"), integers((k, n), torch.bfloat16, layout[1] == "t")
        assert_exact(a, b, c, torch.bfloat16)


KINDS = {
    "pairs": ((520, 328), (328, 776), Configuration(128, 256, cluster=2)),
    "pairs, odd": ((521, 327), (327, 775), Configuration(128, 256, cluster=2)),
    "more tiles than blocks": ((128 * 40 + 8, 72), (72, 1032), Configuration(128, 256, cluster=2)),
    "more tiles than blocks, odd": ((128 * 20 + 1, 391), (391, 2057), Configuration(128, 256)),
    "split": ((200, 1000), (1000, 136), Configuration(128, 96, splits=3)),
    "split, pairs, odd": ((201, 999), (999, 137), Configuration(64, 64, cluster=2, splits=5)),
    "one step": ((128 * 300, 64), (64, 264), Configuration(128, 256)),
    "one step, odd": ((2001, 63), (63, 261), Configuration(128, 128)),
    "one step, several columns": ((128 * 140, 40), (40, 1032), Configuration(64, 192)),
    "few rows": ((16, 1000), (1000, 520), Configuration(64, 16, cluster=2, swap=True)),
    "few rows, odd": ((17, 999), (999, 521), Configuration(128, 32, splits=3, swap=True)),
    "one row": ((1, 1000), (1000, 520), Configuration(64, 16, swap=True)),
    "one column": ((520, 1000), (1000, 1), Configuration(64, 8)),
    "K is one": ((130, 1), (1, 264), Configuration(128, 64)),
    "batch": ((3, 136, 200), (3, 200, 264), Configuration(128, 128)),
    "batch, odd": ((3, 137, 199), (3, 199, 263), Configuration(128, 128, cluster=2)),
    "batch of one step": ((300, 136, 64), (300, 64, 72), Configuration(128, 64)),
    "broadcast": ((2, 1, 3, 136, 72), (4, 1, 72, 264), Configuration(64, 128)),
    "broadcast, odd, split": ((2, 1, 3, 135, 523), (4, 1, 523, 77), Configuration(64, 32, splits=2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_layout_and_type(kind: str) -> None:
    a_shape, b_shape, c = KINDS[kind]
    for i, (a_transposed, b_transposed) in enumerate(itertools.product((False, True), repeat=2)):
        dtype = HALF[i % 2]
        a, b = integers(a_shape, dtype, a_transposed), integers(b_shape, dtype, b_transposed)
        assert_exact(a, b, c, dtype if i < 2 else torch.float32)
        if i in (0, 3):
            assert_exact(a, b, c, torch.float32 if i < 2 else dtype)


@pytest.mark.parametrize("k", [40, 200])
@pytest.mark.parametrize(
    "strides", [(1, 300), (1, 307), (264, 1), (272, 1), (277, 1), (2, 700), (600, 2)], ids=lambda s: f"{s[0]}-{s[1]}"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_an_output_with_any_strides(dtype: torch.dtype, strides: tuple[int, int], k: int) -> None:
    for n, shift in itertools.product((264, 261), (0, 3)):
        a, b = integers((300, k), torch.bfloat16), integers((k, n), torch.bfloat16)
        out = Guarded.empty((300, n), strides, dtype, shift)
        tilesmith.matmul(a, b, out_dtype=dtype, out=out.tensor)
        torch.testing.assert_close(out.tensor, (a.float() @ b.float()).to(dtype), rtol=0, atol=0)
        out.assert_outside_untouched()


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    m=st.one_of(st.integers(1, 20), st.integers(1, 600)),
    k=st.one_of(st.integers(1, 70), st.integers(1, 3000)),
    n=st.one_of(st.integers(1, 20), st.integers(1, 600)),
    batch=st.sampled_from([(), (), (2,), (3, 2)]),
    pads=st.tuples(*[st.sampled_from([0, 0, 1, 3, 8])] * 2),
    shifts=st.tuples(*[st.sampled_from([0, 0, 1, 8])] * 2),
    transposed=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(HALF),
)
def test_random_shapes_and_strides(
    m: int,
    k: int,
    n: int,
    batch: tuple[int, ...],
    pads: tuple[int, int],
    shifts: tuple[int, int],
    transposed: tuple[bool, bool],
    dtype: torch.dtype,
) -> None:
    operands = []
    for (rows, columns), pad, shift, across in zip(((m, k), (k, n)), pads, shifts, transposed, strict=True):
        stored = (columns, rows) if across else (rows, columns)
        strides = (*(stored[0] * (stored[1] + pad) for _ in batch[:1]), stored[1] + pad, 1)
        shape = (*batch[:1], *stored)
        guarded = Guarded.empty(shape, strides, dtype, shift)
        guarded.tensor.copy_(torch.randint(-2, 3, shape, device="cuda"))
        operands.append(guarded)
    a, b = (x.tensor.mT if across else x.tensor for x, across in zip(operands, transposed, strict=True))
    if len(batch) == 2:
        a = a.unsqueeze(1).expand(batch[0], batch[1], m, k)
    result = tilesmith.matmul(a, b.unsqueeze(1) if len(batch) == 2 else b, out_dtype=torch.float32)
    expected = a.float() @ (b.unsqueeze(1) if len(batch) == 2 else b).float()
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


SHAPES = [(512, 512, 512), (777, 2049, 555), (16, 8192, 1024), (256, 65536, 256), (4096, 64, 4096), (1, 4096, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("draw", [torch.rand, torch.randn], ids=["rand", "randn"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_error_is_no_larger_than_torchs(shape: tuple[int, int, int], draw: object, dtype: torch.dtype) -> None:
    m, k, n = shape
    make = torch.rand if draw is torch.rand else torch.randn
    a, b = make(m, k, device="cuda").to(dtype), make(k, n, device="cuda").to(dtype)
    ours, torchs = error(tilesmith.matmul(a, b), a, b), error(a @ b, a, b)
    assert ours.norm <= 1.1 * torchs.norm


@pytest.mark.parametrize("shape", [*SHAPES, (2050, 300, 1111)], ids=str)
def test_the_same_call_gives_the_same_bits(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    first = tilesmith.matmul(a, b, out_dtype=torch.float32)
    for _ in range(5):
        assert torch.equal(tilesmith.matmul(a, b, out_dtype=torch.float32), first)


def test_without_a_split_a_row_does_not_depend_on_the_others() -> None:
    a, b = torch.randn(4100, 520, device="cuda").bfloat16(), torch.randn(520, 1000, device="cuda").bfloat16()
    whole = tilesmith.matmul(a, b, out_dtype=torch.float32)
    seen = set()
    for rows in (1, 2, 16, 40, 64, 100, 128, 200, 300, 1000, 4099):
        plan = choose(Problem.of(a[:rows], b, out_dtype=torch.float32), device.installed(0))
        if plan.splits == 1:
            seen.add(plan.name)
            assert torch.equal(tilesmith.matmul(a[:rows], b, out_dtype=torch.float32), whole[:rows])
    assert len(seen) >= 4


@pytest.mark.parametrize("k", [64, 70, 127, 520])
def test_nan_and_infinity_stay_in_their_rows_and_columns(k: int) -> None:
    a, b = torch.ones(300, k, device="cuda").bfloat16(), torch.ones(k, 296, device="cuda").bfloat16()
    a[5, k - 1], a[130, 0], b[k - 1, 7] = float("nan"), float("inf"), float("-inf")
    result = tilesmith.matmul(a, b)
    torch.testing.assert_close(result, a @ b, rtol=0, atol=0, equal_nan=True)
    assert int(result.isfinite().sum()) == 298 * 295


def test_a_captured_product_of_three_launches_sees_new_operands() -> None:
    a, b = integers((300, 4001), torch.bfloat16), integers((4001, 201), torch.bfloat16)
    plan = choose(Problem.of(a, b), device.installed(0))
    assert [stage.kernel.entry for stage in plan.stages] == ["realign", "sm90", "reduce"]
    tilesmith.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tilesmith.matmul(a, b)
    for _ in range(3):
        a.copy_(integers((300, 4001), torch.bfloat16))
        result.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(result, (a.float() @ b.float()).bfloat16(), rtol=0, atol=0)


def test_products_that_follow_each_other_wait_for_each_other() -> None:
    # Each launch may start before its predecessor ends: a chain of products shows one that reads too early.
    eye = torch.eye(512, device="cuda").bfloat16()
    shift = eye.roll(1, 0).contiguous()
    x = first = integers((512, 512), torch.bfloat16)
    for _ in range(512):
        x = tilesmith.matmul(shift, x)
    torch.testing.assert_close(x, first, rtol=0, atol=0)


def test_gradients_are_products_too() -> None:
    a = integers((130, 77), torch.bfloat16).requires_grad_()
    b = integers((77, 51), torch.bfloat16).requires_grad_()
    weight = integers((130, 51), torch.bfloat16)
    tilesmith.matmul(a, b).backward(weight)
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(a.grad, (weight.float() @ b.float().T).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(b.grad, (a.float().T @ weight.float()).bfloat16(), rtol=0, atol=0)
