"""The `dot` family: how lines and K are divided among blocks, and what ptxas makes of its kernels."""

import itertools

import pytest
import torch
from launched import constants_of, parameters_of
from machine_code import assert_nothing_spills, instructions, total
from meta_tensors import meta

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp64 import gemv
from tilesmith.planner import choose

H200 = KNOWN_GPUS["h200"]
VECTOR = 4


def planned(lines: int, k: int, *, aligned: bool = True, vector_stride: int = 1, vector_first: bool = False) -> Plan:
    pitch = -(-k // VECTOR) * VECTOR + (0 if aligned else 1)
    matrix = torch.empty(lines, pitch, device="meta")[:, :k]
    vector = torch.empty(k, vector_stride, device="meta")[:, 0]
    problem = Problem.of(vector, matrix.T) if vector_first else Problem.of(matrix, vector)
    assert gemv.rejects(problem, H200) is None
    return gemv.plan(problem, H200)


@pytest.mark.parametrize(
    ("lines", "k"), itertools.product((1, 2, 3, 7, 8, 9, 2048, 100_000), (1, 3, 64, 1000, 4097, 1048576))
)
def test_blocks_have_all_lines_and_all_of_k(lines: int, k: int) -> None:
    plan = planned(lines, k)
    stage = plan.launches[0]
    p = parameters_of(stage, gemv.Parameters)
    share_k, line_blocks = p.share_k, p.line_blocks
    assert (p.n, p.k) == (lines, k)
    assert stage.grid == (line_blocks * plan.split_k, 1, 1)
    rows = constants_of(stage.kernel, gemv.Constants).lines
    assert (line_blocks - 1) * rows < lines <= line_blocks * rows
    assert share_k % VECTOR == 0
    assert (plan.split_k - 1) * share_k < k <= plan.split_k * share_k


@pytest.mark.parametrize("strides", [(1, 1), (1, 2), (2, 1)])
def test_of_two_vectors_that_along_k_is_the_matrix(strides: tuple[int, int]) -> None:
    a, b = (torch.empty(5000, stride, device="meta")[:, 0] for stride in strides)
    assert gemv.rejects(Problem.of(a, b), H200) is None
    p = parameters_of(gemv.plan(Problem.of(a, b), H200).product, gemv.Parameters)
    assert p.a_stride == max(strides)  # of what is read as the vector


def test_few_long_lines_fill_the_gpu_and_many_have_one_launch() -> None:
    assert [stage.kernel.entry for stage in planned(2048, 1048576).launches] == ["gemv", "split_k_reduce"]
    assert planned(2048, 1048576).launches[0].grid[0] >= 2 * 2 * H200.sm_count
    assert [stage.kernel.entry for stage in planned(8192, 8192).launches] == ["gemv"]


def test_it_is_chosen_for_a_matrix_by_a_vector_whichever_comes_first() -> None:
    matrix, vector = torch.empty(4096, 4096, device="meta"), torch.empty(4096, device="meta")
    assert choose(Problem.of(matrix, vector), H200).name == "gemv"
    assert choose(Problem.of(vector, matrix.T), H200).name == "gemv"
    assert choose(Problem.of(vector, matrix), H200).name != "gemv"  # lines across K
    assert choose(Problem.of(matrix[:, :1000], vector[:1000]), H200).name == "skinny"  # lines too short for its blocks


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ((2, 8), (8, 4), "one row"),
        ((1, 8), (8, 4), "along K"),
        ((3, 2, 8), (3, 8, 1), "single"),
        ((1, 0), (0, 4), "nothing"),
    ],
)
def test_what_it_rejects(a: tuple[int, ...], b: tuple[int, ...], word: str) -> None:
    assert word in str(gemv.rejects(Problem.of(meta(*a), meta(*b)), H200))


@pytest.mark.parametrize(("lines", "k"), [(2048, 1048576), (5, 100)])
@pytest.mark.parametrize(("aligned", "vector_stride"), [(True, 1), (False, 1), (True, 2)])
def test_machine_code_reads_vectors_and_does_not_spill(lines: int, k: int, aligned: bool, vector_stride: int) -> None:
    stage = planned(lines, k, aligned=aligned, vector_stride=vector_stride).launches[0]
    assert_nothing_spills(stage)
    found = instructions(stage.kernel)
    assert (total(found, r"LDG\.E\.128.*") > 0) == (aligned or vector_stride == 1)
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1
