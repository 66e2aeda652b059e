"""Every type, layout, tile and edge against float64, or exactly where the arithmetic is exact."""

import itertools

import fma_chain
import pytest
import torch
from guarded import Guarded, contiguous_strides, poison
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import batches, strides_for

import tilesmith
from tilesmith.bench.suites import random_tensor
from tilesmith.core import device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import OUT_DTYPES, Problem
from tilesmith.kernels.simt import family as simt
from tilesmith.runtime.executor import compiled

EDGE_SHAPES = [(1, 1, 1), (128, 32, 256), (132, 40, 264), (129, 33, 257)]  # m, k, n: none, whole, vectors, odd
MORE_EDGE_SHAPES = [(1, 300, 1), (257, 1, 129), (1, 70, 515), (515, 70, 1), (33, 31, 65), (260, 520, 132)]
LAYOUTS = ["nn", "nt", "tn", "tt"]
# Units in the last place of a sum in float32, and of the type that is stored.
SUM_ULP = {torch.float64: 2.0**-53}
STORE_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def matrix(rows: int, columns: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    if layout == "t":
        return random_tensor((columns, rows), dtype, "cpu").T
    return random_tensor((rows, columns), dtype, "cpu")


def candidates(problem: Problem) -> list[Plan]:
    return [candidate.plan() for candidate in simt.candidates(problem, device.installed(0))]


def assert_right(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within the bound that a chain of K roundings and one last rounding have."""
    if not result.dtype.is_floating_point:
        wide = [x.to(result.dtype) for x in (a, b)]
        torch.testing.assert_close(result, wide[0] @ wide[1], rtol=0, atol=0)
        return
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    chain = (a.shape[-1] + 1) * SUM_ULP.get(a.dtype, 2.0**-24)
    if a.dtype == torch.float64:
        chain *= 2  # the reference is no better
    bound = (
        chain * size + STORE_ULP.get(result.dtype, 0.0) * exact.abs() * 1.01 + 1e-7 * (result.dtype == torch.float16)
    )
    wrong = ~((result.double() - exact).abs() <= bound)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements are wrong"


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
def test_every_tile_is_right_at_every_edge_and_writes_nothing_else(dtype: torch.dtype, layout: str) -> None:
    for m, k, n in EDGE_SHAPES:
        a, b = matrix(m, k, layout[0], dtype), matrix(k, n, layout[1], dtype)
        guarded_a, guarded_b = Guarded.like(a), Guarded.like(b)
        for plan in candidates(Problem.of(guarded_a.tensor, guarded_b.tensor)):
            out = Guarded.empty((m, n), (n, 1), dtype)
            compiled(plan, 0)(guarded_a.tensor, guarded_b.tensor, out.tensor)
            assert_right(out.tensor.cpu(), a, b)
            for guarded in (guarded_a, guarded_b, out):
                guarded.assert_outside_untouched()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
def test_every_type_and_layout_is_right_at_more_edges(dtype: torch.dtype, layout: str) -> None:
    for (m, k, n), out_dtype in itertools.product(MORE_EDGE_SHAPES, OUT_DTYPES[dtype]):
        a, b = matrix(m, k, layout[0], dtype), matrix(k, n, layout[1], dtype)
        guarded_a, guarded_b = Guarded.like(a), Guarded.like(b)
        out = Guarded.empty((m, n), (n, 1), out_dtype)
        tilesmith.matmul(guarded_a.tensor, guarded_b.tensor, out_dtype=out_dtype, out=out.tensor)
        assert_right(out.tensor.cpu(), a, b)
        for guarded in (guarded_a, guarded_b, out):
            guarded.assert_outside_untouched()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_is_the_textbook_chain_bit_for_bit_whatever_the_tile(layout: str) -> None:
    a, b = matrix(130, 77, layout[0], torch.float32), matrix(77, 134, layout[1], torch.float32)
    a, b = a * torch.randn_like(a).mul(8).exp(), b * torch.randn_like(b).mul(8).exp()  # a wide range of exponents
    expected = fma_chain.product(a, b)
    on_gpu = a.cuda(), b.cuda()
    for plan in candidates(Problem.of(*on_gpu, accuracy="ieee")):
        torch.testing.assert_close(compiled(plan, 0)(*on_gpu).cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32], ids=str)
def test_misaligned_operands_and_output(dtype: torch.dtype, shift: int) -> None:
    a, b = matrix(64, 64, "n", dtype), matrix(64, 64, "n", dtype)
    guarded_a, guarded_b = Guarded.like(a, shift), Guarded.like(b, shift)
    out = Guarded.empty((64, 64), (64, 1), dtype, shift)
    tilesmith.matmul(guarded_a.tensor, guarded_b.tensor, out=out.tensor)
    assert_right(out.tensor.cpu(), a, b)
    out.assert_outside_untouched()


@pytest.mark.parametrize(
    "shapes",
    [
        *(((5, 0), (0, 7)), ((3, 5, 0), (0, 7)), ((0,), (0,)), ((0,), (0, 4))),  # sums of nothing
        *(((0, 5), (5, 7)), ((5, 7), (7, 0)), ((0, 3, 4), (4, 5)), ((2, 0), (0, 0))),  # and no sums
    ],
    ids=str,
)
def test_nothing_to_multiply_gives_zeros(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.empty(shape, device="cuda") for shape in shapes)
    expected = torch.matmul(a, b)
    out = torch.full_like(expected, poison(expected.dtype))
    torch.testing.assert_close(tilesmith.matmul(a, b, out=out), expected, rtol=0, atol=0)
    assert not out.any() and tilesmith.matmul(a, b).shape == expected.shape


@pytest.mark.parametrize(
    "shapes",
    [
        *(((9,), (9,)), ((9,), (9, 5)), ((4, 9), (9,)), ((3, 4, 9), (9,)), ((9,), (3, 9, 5))),
        *(((3, 4, 9), (9, 5)), ((4, 9), (3, 9, 5)), ((2, 1, 4, 9), (3, 9, 5)), ((2, 3, 4, 9), (2, 1, 9, 5))),
        *(((2, 1, 3, 1, 4, 9), (5, 1, 6, 9, 5)), ((70_000, 2, 3), (70_000, 3, 2))),
    ],
    ids=str,
)
def test_shapes_follow_torch(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.randint(-4, 5, shape, dtype=torch.float32, device="cuda") for shape in shapes)
    expected = torch.matmul(a, b)
    out = Guarded.empty(expected.shape, contiguous_strides(expected.shape), expected.dtype)
    tilesmith.matmul(a, b, out=out.tensor)
    torch.testing.assert_close(out.tensor, expected, rtol=0, atol=0)
    torch.testing.assert_close(tilesmith.matmul(a, b), expected, rtol=0, atol=0)
    out.assert_outside_untouched()


def test_nan_and_inf_come_out_where_torch_puts_them() -> None:
    a, b = torch.randn(70, 37, device="cuda"), torch.randn(37, 66, device="cuda")
    a[3, 5], a[10, 36], b[0, 7], b[36, 65], a[50, 2] = float("inf"), float("nan"), float("-inf"), float("nan"), 3e38
    b[2] *= 1e3
    ours, torchs = tilesmith.matmul(a, b), torch.matmul(a, b)
    for mask in (torch.isnan, torch.isposinf, torch.isneginf):
        torch.testing.assert_close(mask(ours), mask(torchs))


@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_tensors_of_more_than_two_to_the_31_elements(which: str) -> None:
    many = 2**31 // 16 + 77
    if which == "a":
        a, b = torch.randint(-9, 9, (many, 17), dtype=torch.int8, device="cuda"), random_ints(17, 3)
    elif which == "b":
        a, b = random_ints(3, 17), torch.randint(-9, 9, (17, many), dtype=torch.int8, device="cuda")
    else:
        a, b = random_ints(many // 8, 5), random_ints(5, 131)
    result = tilesmith.matmul(a, b)
    assert max(a.numel(), b.numel(), result.numel()) > 2**31
    for rows in (slice(0, 2), slice(a.shape[0] // 2, a.shape[0] // 2 + 2), slice(-2, None)):
        for columns in (slice(0, 2), slice(b.shape[1] // 2, b.shape[1] // 2 + 2), slice(-2, None)):
            expected = a[rows].cpu() @ b[:, columns].cpu()
            torch.testing.assert_close(result[rows, columns].cpu(), expected, rtol=0, atol=0)


def random_ints(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-9, 9, (rows, columns), dtype=torch.int8, device="cuda")


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    a, b = torch.randn(300, 513, device="cuda"), torch.randn(513, 300, device="cuda")
    whole = tilesmith.matmul(a, b, accuracy="ieee")
    for rows in (1, 7, 64, 200):
        torch.testing.assert_close(tilesmith.matmul(a[:rows], b, accuracy="ieee"), whole[:rows], rtol=0, atol=0)


def test_a_result_never_moves_between_runs() -> None:
    a, b = torch.randn(1000, 700, device="cuda"), torch.randn(700, 900, device="cuda")
    first = tilesmith.matmul(a, b)
    for _ in range(20):
        torch.testing.assert_close(tilesmith.matmul(a, b), first, rtol=0, atol=0)


sizes = st.one_of(st.integers(1, 9), st.integers(1, 150))


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), m=sizes, k=sizes, n=sizes, batch=batches())
def test_any_strides(
    dtype: torch.dtype, data: st.DataObject, m: int, k: int, n: int, batch: tuple[list[int], list[int]]
) -> None:
    out_dtype = data.draw(st.sampled_from(OUT_DTYPES[dtype]))
    low = 0 if dtype == torch.uint8 else -2

    def operand(shape: list[int]) -> Guarded:
        strides, shift = data.draw(strides_for(shape, may_expand=True))
        guarded = Guarded.empty(shape, strides, dtype, shift)
        # Small integers: every type's arithmetic is exact on them, but for the last rounding.
        values = torch.randint(low, 3, shape, device="cuda").to(dtype)
        distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        guarded.tensor[distinct] = values[distinct]
        return guarded

    a, b = operand([*batch[0], m, k]), operand([*batch[1], k, n])
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    expected = torch.matmul(a.tensor.cpu().to(wide), b.tensor.cpu().to(wide)).to(out_dtype)

    result = tilesmith.matmul(a.tensor, b.tensor, out_dtype=out_dtype)
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)

    strides, shift = data.draw(strides_for(list(expected.shape), may_expand=False))
    out = Guarded.empty(expected.shape, strides, out_dtype, shift)
    tilesmith.matmul(a.tensor, b.tensor, out_dtype=out_dtype, out=out.tensor)
    torch.testing.assert_close(out.tensor.cpu(), expected, rtol=0, atol=0)
    for guarded in (a, b, out):
        guarded.assert_outside_untouched()
