"""float32 as TF32 by the tensor cores' own instruction: in the emulator, against operands that are rounded before."""

import math

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, normal, placed
from tf32_products import assert_right

from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import tf32
from tilesmith.planner import choose

pytestmark = pytest.mark.usefixtures("emulator_cache")


def plans(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> list[Plan]:
    problem = Problem.of(a, b, out=out, accuracy="tf32")
    assert tf32.rejects(problem, H200) is None
    return [candidate.plan() for candidate in tf32.candidates(problem, H200)]


@pytest.mark.parametrize("shape", [(72, 100, 40), (130, 36, 33), (9, 260, 20)], ids=str)
def test_sizes(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = normal(m, k), normal(n, k, seed=1).T
    every = plans(a, b)
    assert_right(every[0], a, b)
    assert_right(every[-1], a, b)


def test_operands_that_lie_across_k_are_left_to_others() -> None:
    for a, b in (
        (normal(40, 64), normal(64, 32)),
        (normal(64, 40).T, normal(32, 64).T),
        (normal(40, 63), normal(32, 63).T),
    ):
        assert "along K" in str(tf32.rejects(Problem.of(a, b, accuracy="tf32"), H200))


def test_batches_that_share_an_operand() -> None:
    a, b = normal(3, 2, 20, 36), normal(2, 24, 36, seed=1).mT
    for x, y in ((a, b), (a, b[0]), (a[:, :1], b)):
        assert_right(plans(x, y)[0], x, y)


def test_nothing_but_the_result_is_written() -> None:
    a, b = placed(normal(40, 70), (76, 1)), placed(normal(70, 30, seed=1), (1, 80))
    out = empty((40, 30), (37, 1), torch.float32)
    assert_right(plans(a, b, out)[0], a, b, out)
    assert_nothing_else_written(out)


def test_infinities_and_nans_are_where_they_belong() -> None:
    a, b = normal(20, 40), normal(24, 40, seed=1).T
    a[0, 1], a[3, 0], b[2, 0], b[0, 5] = math.inf, math.nan, -math.inf, 0.0
    assert_right(plans(a, b)[0], a, b)


def test_small_numbers_and_large_ones_need_no_scale() -> None:
    a, b = normal(20, 40), normal(24, 40, seed=1).T
    a[:10] *= 2.0**100
    a[10:] *= 2.0**-100
    assert_right(plans(a, b)[0], a, b)


def test_it_is_taken_where_a_pass_over_the_operands_costs_more() -> None:
    def chosen(m: int, k: int, n: int) -> str:
        a, b = torch.empty(m, k, device="meta"), torch.empty(n, k, device="meta").T
        return choose(Problem.of(a, b, accuracy="tf32"), H200).family

    assert chosen(12920, 2128, 128) == "hopper_tf32"
    assert chosen(4096, 4096, 4096) == "hopper"  # 16-bit terms take half as long


def test_16_bits_are_planned_alike_whatever_is_asked_of_float32() -> None:
    a, b = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((512, 4096), (4096, 512)))
    assert choose(Problem.of(a, b, accuracy="tf32"), H200).name == choose(Problem.of(a, b), H200).name
