"""The `dot` family: how lines and K are divided among blocks, and what ptxas makes of its kernels."""

import itertools
import re
import struct

import numpy as np
import pytest
import torch
from machine_code import built, complaints, instructions, total

from tilesmith import CompilationError
from tilesmith.device import KNOWN_GPUS
from tilesmith.jit import compiler, source
from tilesmith.kernels import dot
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import Problem

H200 = KNOWN_GPUS["h200"]
VECTOR = 4


def planned(lines: int, k: int, *, aligned: bool = True, vector_stride: int = 1, vector_first: bool = False) -> Plan:
    pitch = -(-k // VECTOR) * VECTOR + (0 if aligned else 1)
    matrix = torch.empty(lines, pitch, device="meta")[:, :k]
    vector = torch.empty(k, vector_stride, device="meta")[:, 0]
    problem = Problem.of(vector, matrix.T) if vector_first else Problem.of(matrix, vector)
    assert dot.rejects(problem, H200) is None
    return dot.plan(problem, H200)


@pytest.mark.parametrize(
    ("lines", "k"), itertools.product((1, 2, 3, 7, 8, 9, 2048, 100_000), (1, 3, 64, 1000, 4097, 1048576))
)
def test_every_line_has_every_k_once(lines: int, k: int) -> None:
    plan = planned(lines, k)
    stage = plan.stages[0]
    c = dict(stage.kernel.constants)
    *_, n, depth, share_k, line_blocks = struct.unpack("<7q4i", stage.arguments)
    assert (n, depth) == (lines, k)
    assert stage.grid == (line_blocks * plan.splits, 1, 1)
    rows = int(c["lines"])
    assert (line_blocks - 1) * rows < lines <= line_blocks * rows
    assert share_k % VECTOR == 0
    assert (plan.splits - 1) * share_k < k <= plan.splits * share_k
    seen = np.zeros(k, dtype=int)
    threads = np.arange(stage.threads)
    for part in range(plan.splits):
        first, end = part * share_k, min((part + 1) * share_k, k)
        for at in range(first, end, stage.threads * VECTOR):
            ks = (at + threads[:, None] * VECTOR + np.arange(VECTOR)).ravel()
            np.add.at(seen, ks[ks < end], 1)
    assert (seen == 1).all()


@pytest.mark.parametrize("strides", [(1, 1), (1, 2), (2, 1)])
def test_of_two_vectors_that_along_k_is_the_matrix(strides: tuple[int, int]) -> None:
    a, b = (torch.empty(5000, stride, device="meta")[:, 0] for stride in strides)
    assert dot.rejects(Problem.of(a, b), H200) is None
    arguments = struct.unpack("<7q4i", dot.plan(Problem.of(a, b), H200).stages[0].arguments)
    assert arguments[3] == max(strides)  # of what is read as the vector


def test_few_long_lines_fill_the_gpu_and_many_have_one_launch() -> None:
    assert [stage.kernel.entry for stage in planned(2048, 1048576).stages] == ["dot", "reduce"]
    assert planned(2048, 1048576).stages[0].grid[0] >= 2 * 2 * H200.sm_count
    assert [stage.kernel.entry for stage in planned(8192, 8192).stages] == ["dot"]


def test_it_is_chosen_for_a_matrix_by_a_vector_whichever_comes_first() -> None:
    matrix, vector = torch.empty(4096, 4096, device="meta"), torch.empty(4096, device="meta")
    assert choose(Problem.of(matrix, vector), H200).name == "dot"
    assert choose(Problem.of(vector, matrix.T), H200).name == "dot"
    assert choose(Problem.of(vector, matrix), H200).name != "dot"  # lines across K
    assert choose(Problem.of(matrix[:, :1000], vector[:1000]), H200).name == "thin"  # lines too short for its blocks


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
    reason = dot.rejects(Problem.of(torch.empty(a, device="meta"), torch.empty(b, device="meta")), H200)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(("lines", "k"), [(2048, 1048576), (5, 100)])
@pytest.mark.parametrize(("aligned", "vector_stride"), [(True, 1), (False, 1), (True, 2)])
def test_the_machine_code_reads_vectors_and_does_not_spill(
    lines: int, k: int, aligned: bool, vector_stride: int
) -> None:
    stage = planned(lines, k, aligned=aligned, vector_stride=vector_stride).stages[0]
    _, log = built(stage.kernel)
    assert complaints(log) == []
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    assert 2 * stage.threads * int(used[1]) <= H200.registers_per_sm
    found = instructions(stage.kernel)
    assert (total(found, r"LDG\.E\.128.*") > 0) == (aligned or vector_stride == 1)
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1


def test_a_kernel_with_wrong_arguments_does_not_compile() -> None:
    text = source.render(planned(8, 64).stages[0].kernel)
    wrong = text.replace("parameter_bytes = 72;", "parameter_bytes = 80;")
    assert wrong != text
    with pytest.raises(CompilationError, match="static assertion failed"):
        compiler.compile(wrong, "sm_90a")
