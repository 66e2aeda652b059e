"""The `gemv` family: a float32 matrix by a vector, where the lines of the matrix run along K.

Products are exact in double, and sums are rounded to float once. Where there are few lines, K is cut into parts, whose
sums a last launch adds in order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import Address, Int32, Int64, KernelConstants, ParameterBlock, Pointer, to
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import Problem
from tilesmith.kernels import output, split_k_reduce
from tilesmith.kernels.blank import blank
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters, kind_of_reads, kinds_of_reads
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp64 import common
from tilesmith.kernels.fp64.common import swap_ab_for_few_rows
from tilesmith.kernels.operand import aligned_lines, round_up

_VECTOR: Final = 4
_LINES: Final = (1, 2, 4, 8)  # of a block
_MAX_LINES: Final = max(_LINES)
_MAX_THREADS: Final = 256
_WARP: Final = 32
_BLOCKS_PER_SM: Final = 2
_WAVES: Final = 4  # of blocks, that they end at about the same time
_MIN_STEPS: Final = 4  # of a block along K
_MAX_SPLIT_K: Final = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `fp64.gemv` of a GPU's rates."""

    start_clocks: float
    reduce_clocks: float
    read_bytes_per_clock: float
    block_overhead_steps: float  # along K, in which the start and the end of a block could have read


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := common.rejects_single(problem, device):
        return reason
    if min(problem.m, problem.n) > 1:
        return "is for one row or column"
    p = _oriented(problem)
    if p.k > 1 and p.b.row_stride != 1:
        return "reads lines along K"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    yield Candidate("gemv", _cost(_oriented(problem), device).cycles, partial(plan, problem, device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of gemv.cu."""

    vector: int = _VECTOR
    lines: int
    a_vectors: bool
    b_aligned: bool
    blocks_per_sm: int = _BLOCKS_PER_SM
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of gemv.cu."""

    a: Annotated[Pointer, to("const float")]
    b: Annotated[Pointer, to("const float")]
    out: Annotated[Pointer, to("void")]  # floats; if they are parts of sums, doubles
    a_stride: Int64
    b_line_stride: Int64
    out_is_partial: Int32
    out_part_stride: Int64
    out_stride: Int64
    n: Int32
    k: Int32
    share_k: Int32  # of a block, a multiple of `vector`
    line_blocks: Int32  # in a part of K
    epilogue: EpilogueParameters


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    if not common.runs_on(device):
        return
    threads_of_all_lines = range(_WARP, _MAX_THREADS + 1, _WARP)
    blocks = [(lines, _MAX_THREADS) for lines in _LINES if lines < _MAX_LINES]
    blocks += [(_MAX_LINES, threads) for threads in threads_of_all_lines]
    for lines, threads in blocks:
        yield from (_kernel(lines, threads, *each) for each in kinds_of_reads())
    yield from split_k_reduce.kernels()


@cache
def _kernel(lines: int, threads: int, a_vectors: bool, b_aligned: bool, has_epilogue: bool) -> Kernel:
    constants = Constants(
        lines=lines, a_vectors=a_vectors, b_aligned=b_aligned, epilogue=EpilogueConstants(any=has_epilogue)
    )
    parameters = blank(Parameters, epilogue=EpilogueParameters.of(None, 0))
    return Kernel.of("gemv", "kernels/fp64/gemv.cu", constants, parameters, threads=threads)


def plan(problem: Problem, device: Device) -> Plan:
    p = _oriented(problem)
    lines, split_k, threads = _lines(p), _split_k(p, device), _threads(p)
    line_blocks = math.ceil(p.n / lines)
    partials = output.partial(p.out, split_k, 0, torch.float64) if split_k > 1 else None
    partial_stride = partials.line_stride if partials is not None and partials.along_m else 1
    spec = p.epilogue if partials is None else None  # or else that of the launch that adds the parts
    parameters = Parameters(
        a=Address("a" if p is problem else "b"),
        b=Address("b" if p is problem else "a"),
        out=Address("out" if partials is None else "workspace"),
        a_stride=p.a.column_stride,
        b_line_stride=p.b.column_stride,
        out_is_partial=int(partials is not None),
        out_part_stride=0 if partials is None else partials.batch_strides[0],
        out_stride=p.out.column_stride if partials is None else partial_stride,
        n=p.n,
        k=p.k,
        share_k=round_up(math.ceil(p.k / split_k), _VECTOR),
        line_blocks=line_blocks,
        epilogue=EpilogueParameters.of(spec, 0),
    )
    reads = kind_of_reads(aligned_lines(p.a), aligned_lines(p.b.transposed), spec)
    kernel = _kernel(lines, threads, *reads)
    grid = (line_blocks * split_k, 1, 1)
    launches = [KernelLaunch(kernel, parameters, grid, awaits_predecessor=True, multiplies=True)]
    if partials is not None:
        launches.append(split_k_reduce.launch(p, partials, split_k))
    cost = _cost(p, device)
    tiling = Tiling(
        rows=1,
        columns=lines,
        workers="warps",
        worker_rows=1,
        worker_columns=lines,
        units=line_blocks * split_k,
        units_at_once=device.sm_count * _BLOCKS_PER_SM,
        parts_of_k=split_k,
        worker_sets=threads // 32,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family="gemv",
        name="gemv",
        launches=tuple(launches),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
        workspace_bytes=0 if partials is None else partials.bytes,
        split_k=split_k,
    )


def _oriented(problem: Problem) -> Problem:
    """The product of a vector by the columns of a matrix that lie along K."""
    if problem.m == problem.n == 1 and problem.b.row_stride != 1:
        return problem.transposed  # each of two vectors may be the matrix
    return swap_ab_for_few_rows(problem)


def _lines(problem: Problem) -> int:
    """The lines of a block: as many as share what it reads of the vector, and no more than there are."""
    return min(_MAX_LINES, 1 << (problem.n - 1).bit_length())


def _threads(problem: Problem) -> int:
    """No more than K has vectors for; but where there is but one block, it makes no difference."""
    if _lines(problem) < _MAX_LINES:
        return _MAX_THREADS
    return min(round_up(math.ceil(problem.k / _VECTOR), _WARP), _MAX_THREADS)


def _split_k(problem: Problem, device: Device) -> int:
    """So many that the blocks fill the GPU a few times."""
    wanted = _WAVES * _BLOCKS_PER_SM * device.sm_count // math.ceil(problem.n / _lines(problem))
    worth = problem.k // (_MIN_STEPS * _VECTOR * _MAX_THREADS)
    return max(1, min(wanted, worth, _MAX_SPLIT_K))


def _cost(problem: Problem, device: Device) -> Cost:
    """The cost of a vector by the columns of a matrix."""
    r = rates.section(device, "fp64.gemv", Rates)
    split_k, step = _split_k(problem, device), _VECTOR * _threads(problem)
    share = math.ceil(problem.k / split_k)
    steps = math.ceil(share / step) + r.block_overhead_steps
    reading = 4 * problem.k * problem.n / r.read_bytes_per_clock * steps * step / share
    return Cost(product=r.start_clocks + reading, reduction=r.reduce_clocks if split_k > 1 else 0.0)
