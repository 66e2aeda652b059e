"""float32 as TF32 by the tensor cores' own instruction: in the emulator, against operands that are rounded before."""

import math

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, normal, placed
from machine_code import (
    assert_nothing_spills,
    disassembled,
    instructions_in,
    overwritten_operands,
    products_of_registers,
    total,
)
from meta_tensors import meta
from tf32_products import assert_right, laid_out, rounded

from tilesmith import emulator
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


def entries(plan: Plan) -> list[str]:
    return [launch.kernel.entry for launch in plan.launches]


@pytest.mark.parametrize(
    ("layout", "before"),
    [
        ("nt", []),
        ("tt", []),  # what lies across K goes through registers
        ("nn", []),
        ("tn", ["turn"]),  # one of both does
        ("NT", ["realign"]),
        ("Tt", ["turn"]),
        ("nN", ["turn"]),
        ("tN", ["turn"]),
        ("NN", ["realign", "turn"]),
        ("TN", ["turn", "turn"]),
    ],
)
def test_layouts(layout: str, before: list[str]) -> None:
    a, b = laid_out(normal(75, 101), layout[0]), laid_out(normal(101, 43, seed=1), layout[1])
    every = plans(a, b)
    for plan in (every[0], every[-1]):
        assert entries(plan) == [*before, "gemm"]
        assert_right(plan, a, b)


def test_of_two_operands_across_k_the_smaller_one_is_turned() -> None:
    for m, n in ((20, 140), (140, 20)):
        a, b = laid_out(normal(m, 100), "t"), laid_out(normal(100, n, seed=1), "n")
        plan = plans(a, b)[0]
        assert {each.buffer for _, each in plan.launches[0].parameters.addresses()} == {"workspace", "ab"[m > n]}
        assert_right(plan, a, b)


def test_a_matrix_without_contiguous_lines_is_left_to_others() -> None:
    a, b = normal(40, 128)[:, ::2], normal(64, 32)
    assert "no contiguous lines" in str(tf32.rejects(Problem.of(a, b, accuracy="tf32"), H200))


@pytest.mark.parametrize("layout", ["nt", "tt", "NN", "TN"])
def test_batches_that_share_an_operand(layout: str) -> None:
    a, b = laid_out(normal(3, 2, 21, 37), layout[0]), laid_out(normal(2, 37, 24, seed=1), layout[1])
    for x, y in ((a, b), (a, b[0]), (a[:, :1], b)):
        assert_right(plans(x, y)[0], x, y)


@pytest.mark.parametrize("layout", ["nt", "tt"])
def test_long_sums_of_positive_numbers_are_cut_off_in_short_ones_only(layout: str) -> None:
    a, b = laid_out(normal(16, 4096).abs(), layout[0]), laid_out(normal(4096, 16, seed=1).abs(), layout[1])
    a, b = a.copy_(rounded(a)), b.copy_(rounded(b))
    (plan,) = (each for each in plans(a, b) if each.name == "hopper_tf32 64x16")
    error = (emulator.run(plan, a, b).double() / (a.double() @ b.double()) - 1).abs().max()
    assert error < 3e-6  # one sum would lose 2.4e-5


def test_products_of_an_operand_across_k_do_not_spill() -> None:
    for m, n in ((4096, 2048), (40, 200), (4096, 40)):
        for plan in plans(meta(256, m).T, meta(n, 256).T):
            assert_nothing_spills(plan.product)
            text = disassembled(plan.product.kernel)
            assert products_of_registers(text) == total(instructions_in(text), r"HGMMA.*") > 0
            assert overwritten_operands(text) == []


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
