"""The random products of `make fuzz-gpu` and `make soak-gpu`: how they are drawn, and that what is wrong is noticed."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from drawn_calls import Tensors, multiply, tensors_of
from drawn_cases import RELATED, Case, drawn
from drawn_plans import Planned, covering, plans_of
from drawn_verdicts import Verdict, exact_result, judged

import tilesmith
from tilesmith.core.device import named
from tilesmith.core.epilogue import ACTIVATIONS

H200 = named("h200")


@cache
def many() -> list[tuple[Case, Planned]]:
    return [(case, plans_of(case, H200)) for case in (drawn(0, index) for index in range(0, 8000, 4))]


def test_a_problem_is_its_seed_and_its_index() -> None:
    some = [drawn(7, index) for index in range(40)]
    assert [drawn(7, index) for index in reversed(range(40))] == some[::-1]
    assert drawn(8, 5) != some[5]
    first, second = (tensors_of(some[3], "cpu") for _ in range(2))
    assert torch.equal(first.a.tensor, second.a.tensor) and torch.equal(first.b.tensor, second.b.tensor)


def test_related_problems_have_their_kind_in_common() -> None:
    for first in range(0, 400, RELATED):
        related = [drawn(0, index) for index in range(first, first + RELATED)]
        assert len({(case.call, case.types, case.accuracy, case.activation, case.packed) for case in related}) == 1
        assert len({case.values for case in related} | {str(case.a.shape) for case in related}) > 1


def test_two_thousand_cover_every_family_call_and_layout() -> None:
    families = Counter(planned.family for _, planned in many())
    around = ("gemm", "gemm realign", "gemm split_k", "gemm realign split_k", "gemm_fp32", "gemm_fp32 split_k")
    for family in (*around, "mma", "mma split_k", "mma_large", "skinny", "gemv", "simt", "nothing"):
        assert families[family] >= 5, (family, families)
    assert families["gemm_fp32_rs"] + families["gemm_fp32_rs split_k"] >= 5
    cases = [case for case, _ in many()]
    assert {case.call for case in cases} == {"matmul", "linear", "addmm", "override"}
    assert {case.activation for case in cases} == {None, *ACTIVATIONS}
    assert {case.resolved for case in cases} >= {"fp32", "tf32", "ieee", "bfloat16", "float16", "float64", "int8"}
    assert {len(case.a.shape) for case in cases} == {1, 2, 3, 4, 5, 6}
    assert any(0 in case.a.strides[:-2] for case in cases)
    assert {case.packed for case in cases} == {(x, y) for x in (False, True) for y in (False, True)}
    by_columns = [case for case in cases if case.out is not None and case.out.strides[-2:-1] == (1,)]
    assert len(by_columns) > 50
    assert all(2 * math.prod(case.shape) * case.k <= 2**35 for case in cases)


def test_what_is_soaked_has_every_family_scheme_and_epilogue() -> None:
    chosen = covering(0, 300, H200)
    assert len({case.index for case, _ in chosen}) == 300
    families = Counter(planned.family for _, planned in chosen)
    assert {planned.family for _, planned in many()} - {"nothing"} <= families.keys()
    assert min(families.values()) >= 2, families
    by_terms = [case for case, planned in chosen if planned.family.startswith("gemm_fp32")]
    assert {case.resolved for case in by_terms} == {"fp32", "tf32"}
    assert {case.activation for case in by_terms} == {None, *ACTIVATIONS}
    for has in (lambda c: c.bias, lambda c: c.residual, lambda c: c.scale != 1, lambda c: any(c.packed)):
        assert sum(bool(has(case)) for case in by_terms) >= 3


def one_of(kind: Callable[[Case, Planned], bool]) -> tuple[Case, Planned]:
    return next((case, planned) for case, planned in many() if kind(case, planned))


KINDS: dict[str, Callable[[Case, Planned], bool]] = {
    "fp32": lambda case, _: case.resolved == "fp32" and case.call == "matmul" and case.values == "normal",
    "tf32": lambda case, _: case.resolved == "tf32" and case.values == "normal",
    "ieee": lambda case, _: case.resolved == "ieee" and case.values == "normal",
    "bfloat16": lambda case, _: case.resolved == "bfloat16" and case.values == "normal",
    "float64": lambda case, _: case.resolved == "float64" and case.values == "normal",
    "int8": lambda case, _: case.resolved == "int8",
    "an activation": lambda case, _: case.activation == "gelu" and case.resolved == "fp32" and case.values == "normal",
    "infinities": lambda case, _: case.values == "infinities and NaNs" and case.dtype == torch.float32,
    "overflow": lambda case, _: case.values == "overflowing" and case.call == "matmul" and case.resolved == "fp32",
}


def is_small(case: Case, *, with_out: bool) -> bool:
    is_in_reach = 20 < math.prod(case.shape) < 10**5 and 8 < case.k < 1000 and case.scale == 1
    return is_in_reach and (not with_out or case.out is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_an_unwritten_and_a_stray_element_are_noticed(kind: str) -> None:
    has_out = kind not in ("an activation", "overflow")
    case, planned = one_of(lambda case, planned: is_small(case, with_out=has_out) and KINDS[kind](case, planned))

    def verdict(change: Callable[[torch.Tensor, Tensors], object]) -> Verdict:
        tensors = tensors_of(case, "cpu")
        exact = exact_result(case, tensors)
        right = exact.result if case.dtype.is_floating_point else exact.product.to(torch.int64)
        result = right.to(case.dtype) if tensors.out is None else tensors.out.tensor.copy_(right)
        change(result, tensors)
        return judged(case, planned, tensors, exact, result)

    assert verdict(lambda result, _: None).problem is None

    def spoil(result: torch.Tensor, _: Tensors) -> None:
        finite = result.isfinite() & (result != 0) if result.is_floating_point() else torch.ones_like(result).bool()
        place = tuple(finite.nonzero()[0].tolist())
        result[place] += max(float(result[place].abs()) / 32, 1)

    assert "1 of" in str(verdict(spoil).problem)
    if case.dtype.is_floating_point:
        where = (0,) * len(case.shape)
        not_written = verdict(lambda result, _: result[where].fill_(math.nan if kind != "infinities" else 0.0))
        assert "1 of" in str(not_written.problem)
    stray = verdict(lambda _, tensors: tensors.guarded[-1]._buffer[3:4].zero_())
    assert stray.problem == "1 elements outside of its tensors were written"


@pytest.mark.usefixtures("emulator_cache")
@pytest.mark.parametrize("call", ["matmul", "linear", "addmm", "override"])
def test_kernels_in_the_emulator_are_right(call: str) -> None:
    """One of each, as `make fuzz-gpu` would do it on a GPU."""

    def is_tiny(case: Case, planned: Planned) -> bool:
        is_right = case.call == call and planned.family in ("mma", "simt") and case.dtype == torch.float32
        return is_right and 0 < math.prod(case.shape) < 2000 and 0 < case.k < 64

    case, planned = one_of(is_tiny)
    tensors = tensors_of(case, "cpu")
    exact = exact_result(case, tensors)
    with tilesmith.emulate("h200"):
        result = multiply(case, planned, tensors)
    assert judged(case, planned, tensors, exact, result).problem is None
