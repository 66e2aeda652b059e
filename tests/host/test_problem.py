"""Problem.of: what it reads from operands, and that folding and merging keep the meaning."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from meta_tensors import meta

from tilesmith.core.accuracy import numerics, resolve
from tilesmith.core.call_key import call_key
from tilesmith.core.checks import product_shape
from tilesmith.core.problem import ALIGNMENT, OUT_DTYPES, Matrix, Problem, contiguous_strides

property_test = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def strides(matrix: Matrix) -> tuple[int, int, tuple[int, ...]]:
    return matrix.row_stride, matrix.column_stride, matrix.batch_strides


@pytest.mark.parametrize(
    ("a", "b", "mnk", "batch", "out_shape"),
    [
        ((5,), (5,), (1, 1, 5), (), ()),
        ((5,), (5, 7), (1, 7, 5), (), (7,)),
        ((3, 5), (5,), (3, 1, 5), (), (3,)),
        ((3, 5), (5, 7), (3, 7, 5), (), (3, 7)),
        ((2, 3, 5), (2, 5, 7), (3, 7, 5), (2,), (2, 3, 7)),
        ((2, 3, 5), (5, 7), (6, 7, 5), (), (2, 3, 7)),
        ((2, 3, 5), (5,), (6, 1, 5), (), (2, 3)),
        ((3, 5), (2, 5, 7), (3, 7, 5), (2,), (2, 3, 7)),
        ((5,), (2, 5, 7), (1, 7, 5), (2,), (2, 7)),
        ((4, 2, 3, 5), (4, 2, 5, 7), (3, 7, 5), (8,), (4, 2, 3, 7)),
        ((4, 1, 3, 5), (1, 2, 5, 7), (3, 7, 5), (4, 2), (4, 2, 3, 7)),
        ((4, 2, 3, 5), (2, 5, 7), (3, 7, 5), (4, 2), (4, 2, 3, 7)),
        ((1, 1, 3, 5), (1, 5, 7), (3, 7, 5), (), (1, 1, 3, 7)),
        ((0, 5), (5, 7), (0, 7, 5), (), (0, 7)),
        ((3, 0), (0, 7), (3, 7, 0), (), (3, 7)),
        ((3, 5), (5, 0), (3, 0, 5), (), (3, 0)),
        ((0, 3, 5), (0, 5, 7), (3, 7, 5), (0,), (0, 3, 7)),
    ],
)
def test_sizes_follow_the_shapes(
    a: tuple[int, ...],
    b: tuple[int, ...],
    mnk: tuple[int, int, int],
    batch: tuple[int, ...],
    out_shape: tuple[int, ...],
) -> None:
    problem = Problem.of(meta(*a), meta(*b))
    assert (problem.m, problem.n, problem.k) == mnk
    assert problem.batch == batch
    assert problem.out_shape == out_shape
    assert (problem.a.rows, problem.a.columns) == (problem.m, problem.k)
    assert (problem.b.rows, problem.b.columns) == (problem.k, problem.n)
    assert (problem.out.rows, problem.out.columns) == (problem.m, problem.n)


def test_a_size_of_one_has_stride_zero() -> None:
    problem = Problem.of(meta(1, 1), meta(1, 1))
    assert [strides(matrix) for matrix in (problem.a, problem.b, problem.out)] == [(0, 0, ())] * 3
    column = Problem.of(meta(4, 9)[:, 3:4], meta(9, 6)[2:3])
    assert strides(column.a) == (9, 0, ())
    assert strides(column.b) == (0, 1, ())


def test_a_batch_that_shares_b_becomes_rows() -> None:
    problem = Problem.of(meta(4, 2, 3, 5), meta(5, 7))
    assert (problem.m, problem.batch) == (24, ())
    assert strides(problem.a) == (5, 1, ())
    assert strides(problem.out) == (7, 1, ())


def test_single_rows_that_share_b_become_rows_at_any_stride() -> None:
    problem = Problem.of(meta(6, 9, 5)[:, 4:5], meta(5, 7))
    assert (problem.m, problem.batch) == (6, ())
    assert strides(problem.a) == (45, 1, ())
    assert strides(problem.out) == (7, 1, ())


def test_a_batch_with_gaps_between_its_matrices_stays_a_batch() -> None:
    problem = Problem.of(meta(2, 4, 5)[:, :3], meta(5, 7))
    assert (problem.m, problem.batch) == (3, (2,))
    assert strides(problem.a) == (5, 1, (20,))


def test_a_batch_stays_one_where_out_has_gaps() -> None:
    out = meta(2, 4, 7)[:, :3]
    problem = Problem.of(meta(2, 3, 5), meta(5, 7), out=out)
    assert (problem.m, problem.batch) == (3, (2,))
    assert strides(problem.out) == (7, 1, (28,))


@pytest.mark.parametrize(("offset", "alignment"), [(0, 16), (1, 4), (2, 8), (3, 4), (4, 16), (6, 8)])
def test_alignment_is_that_of_the_first_elements_address(offset: int, alignment: int) -> None:
    storage = torch.zeros(64)
    assert storage.data_ptr() % ALIGNMENT == 0
    a = storage.as_strided((4, 4), (4, 1), offset)
    problem = Problem.of(a, a, out=a)
    assert [problem.a.alignment, problem.b.alignment, problem.out.alignment] == [alignment] * 3


def test_a_new_output_is_aligned() -> None:
    a = torch.zeros(64, dtype=torch.int8).as_strided((4, 4), (4, 1), 1)
    problem = Problem.of(a, a)
    assert (problem.a.alignment, problem.out.alignment) == (1, ALIGNMENT)


def test_every_result_type_is_carried_by_out_alone() -> None:
    for dtype, results in OUT_DTYPES.items():
        assert Problem.of(meta(2, 2, dtype=dtype), meta(2, 2, dtype=dtype)).out.dtype == dtype
        for result in results:
            problem = Problem.of(meta(2, 2, dtype=dtype), meta(2, 2, dtype=dtype), out_dtype=result)
            assert (problem.a.dtype, problem.b.dtype, problem.out.dtype) == (dtype, dtype, result)


def test_sizes_in_total() -> None:
    problem = Problem.of(meta(4, 1, 3, 5), meta(1, 2, 5, 7))
    assert (problem.batches, problem.flops, problem.is_empty) == (8, 2 * 3 * 5 * 7 * 8, False)
    empty = [Problem.of(meta(m, k), meta(k, n)).is_empty for m, n, k in [(0, 1, 1), (1, 0, 1), (1, 1, 0)]]
    assert empty == [True, True, False]
    assert Problem.of(meta(0, 2, 2), meta(0, 2, 2)).is_empty


def test_a_problem_reads_as_its_sizes_and_types() -> None:
    assert str(Problem.of(meta(3, 5), meta(5, 7))) == "3 x 5 x 7 float32"
    widened = Problem.of(meta(2, 3, 5, dtype=torch.int8), meta(2, 5, 7, dtype=torch.int8), out_dtype=torch.int32)
    assert str(widened) == "2 x 3 x 5 x 7 int8 -> int32"


def test_equal_operands_make_equal_problems() -> None:
    one, other = Problem.of(meta(3, 5), meta(5, 7)), Problem.of(meta(3, 5), meta(5, 7))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Problem.of(meta(3, 5), meta(7, 5).T)
    assert one != one._replace(accuracy="ieee")


@pytest.fixture
def torch_precision() -> Iterator[Any]:
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    yield setting
    setting.fp32_precision = before


def test_no_accuracy_follows_torchs_setting(torch_precision: Any) -> None:
    torch_precision.fp32_precision = "ieee"
    assert resolve(None) == "fp32"
    torch_precision.fp32_precision = "tf32"
    assert resolve(None) == "tf32"
    assert [resolve(name) for name in ("fp32", "tf32", "ieee")] == ["fp32", "tf32", "ieee"]


def test_numerics_are_one_object_of_each_kind_and_mix_only_if_asked(torch_precision: Any) -> None:
    torch_precision.fp32_precision = "tf32"
    assert (numerics(None).accuracy, numerics(None, torch.bfloat16).accuracy) == ("tf32", "fp32")
    found = [numerics(name) for name in (None, "fp32", "tf32", "ieee")]
    assert [each.may_mix for each in found] == [False, True, True, False]
    assert found == [numerics(name) for name in (None, "fp32", "tf32", "ieee")]
    assert len({*found, numerics(None, torch.bfloat16)}) == 5


def test_calls_have_one_key_if_a_plan_cannot_tell_them_apart() -> None:
    a, b = torch.zeros(8, 16), torch.zeros(16, 8)
    c, shifted = torch.zeros(8), torch.zeros(129)[1:].view(8, 16)
    key = call_key("how", a, b)
    assert key == call_key("how", a.clone(), b.clone())
    others = [
        call_key("else", a, b),
        call_key("how", b.T, b),
        call_key("how", a, a.T),
        call_key("how", a.double(), b.double()),
        call_key("how", shifted, b),
        call_key("how", a, b, torch.float64),
        call_key("how", a, b, None, torch.zeros(8, 8)),
        call_key("how", a, b, None, torch.zeros(8, 8).T),
        call_key("how", a, b, None, None, torch.zeros(8, 8)),
        call_key("how", a, b, None, torch.zeros(8, 8), c),
    ]
    assert len({key, *others}) == 1 + len(others)


@given(st.lists(st.integers(0, 5), max_size=4))
@property_test
def test_contiguous_strides_are_torchs(shape: list[int]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], expandable: bool = True) -> torch.Tensor:
    """An int64 view of this shape: its dimensions stored in any order, sliced, stepped, or expanded."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    expanded = [expandable and draw(st.integers(0, 4)) == 0 for _ in shape]
    starts = [draw(st.integers(0, 2)) for _ in shape]
    steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    sizes = [
        start + (1 if is_expanded else size) * step
        for size, start, step, is_expanded in zip(shape, starts, steps, expanded, strict=True)
    ]
    count = math.prod(sizes)
    stored = (torch.arange(count) * 5 % 11 - 5).reshape([sizes[d] for d in order])
    view = stored.permute(*np.argsort(order).tolist()) if rank else stored
    view = view[tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))]
    return view.expand(shape)


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = draw(mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=3, min_side=0, max_side=4))
    a, b = shapes.input_shapes
    return draw(layouts(a)), draw(layouts(b))


def flat(tensor: torch.Tensor) -> Any:
    """All of a tensor's storage, as an array that shares its memory."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0).numpy()


def places(matrix: Matrix, first: int, batch_index: tuple[int, ...]) -> Any:
    """Where the elements of one matrix of the batch lie in the storage."""
    start = first + sum(i * stride for i, stride in zip(batch_index, matrix.batch_strides, strict=True))
    rows, columns = np.arange(matrix.rows)[:, None], np.arange(matrix.columns)[None, :]
    return start + rows * matrix.row_stride + columns * matrix.column_stride


def multiply_by_the_book(problem: Problem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Does what a kernel would do that knows the problem and three addresses, and nothing else."""
    for index in np.ndindex(*problem.batch):
        left = flat(a)[places(problem.a, int(a.storage_offset()), index)]
        right = flat(b)[places(problem.b, int(b.storage_offset()), index)]
        flat(out)[places(problem.out, int(out.storage_offset()), index)] = left @ right


@given(operands())
@property_test
def test_the_problem_means_torchs_product(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    problem = Problem.of(a, b)
    assert problem.out_shape == product_shape(a.shape, b.shape)
    out = torch.full(problem.out_shape, 9999, dtype=torch.int64)
    multiply_by_the_book(problem, a, b, out)
    assert torch.equal(out, torch.matmul(a, b))


@given(operands(), st.data())
@property_test
def test_the_problem_writes_all_of_out_and_nothing_beside_it(
    pair: tuple[torch.Tensor, torch.Tensor], data: st.DataObject
) -> None:
    a, b = pair
    expected = torch.matmul(a, b)
    out = data.draw(layouts(tuple(expected.shape), expandable=False))
    everything = torch.from_numpy(flat(out))
    everything.fill_(7777)
    multiply_by_the_book(Problem.of(a, b, out=out), a, b, out)
    assert torch.equal(out, expected)
    out.fill_(7777)
    assert bool((everything == 7777).all())


@given(operands())
@property_test
def test_the_transposed_problem_is_the_same_product(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    problem = Problem.of(a, b)
    assert problem.transposed.transposed == problem
    assert (problem.transposed.m, problem.transposed.n, problem.transposed.k) == (problem.n, problem.m, problem.k)
    out = torch.full(problem.out_shape, 9999, dtype=torch.int64)
    multiply_by_the_book(problem.transposed, b, a, out)
    assert torch.equal(out, torch.matmul(a, b))


@given(operands())
@property_test
def test_folding_leaves_no_batch_dimension_of_one_and_none_that_could_be_merged(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    problem = Problem.of(*pair)
    assert 1 not in problem.batch
    columns = [problem.a.batch_strides, problem.b.batch_strides, problem.out.batch_strides]
    for outer, size in enumerate(problem.batch[1:]):
        assert any(s[outer] != size * s[outer + 1] for s in columns)
