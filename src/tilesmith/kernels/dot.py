"""The `dot` family: a float32 matrix by a vector, where the lines of the matrix run along K.

Products are exact in double, and sums are rounded to float once. Where there are few lines, K is cut into parts, whose
rounded sums a last launch adds in order.
"""

import math
import struct
from collections.abc import Iterator
from functools import partial
from typing import Final

from tilesmith.device import Device
from tilesmith.kernels import doubles, finish, result
from tilesmith.kernels.doubles import few_as_rows
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import aligned_lines, round_up
from tilesmith.plan import Address, Buffer, Constant, Cost, Kernel, Plan, Rejection, Stage, Tiling
from tilesmith.problem import Problem

# Of kernels/dot.cu.
_VECTOR: Final = 4
_MOST_LINES: Final = 8  # of a block
_MOST_THREADS: Final = 256
_BLOCKS_PER_SM: Final = 2
_WAVES: Final = 4  # of blocks, that they end at about the same time
_LEAST_STEPS: Final = 4  # of a block along K
_MOST_PARTS: Final = 64

# Clocks, and bytes a clock.
_START: Final = 6800.0
_REDUCE: Final = 3500.0
_READ: Final = 2620.0
_STEPS_OF_A_BLOCK: Final = 0.6  # along K, in which the start and the end of a block could have read


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := doubles.rejects_single(problem, device):
        return reason
    p = _oriented(problem)
    if p.m > 1:
        return "is for one row or column"
    if p.k > 1 and p.b.row_stride != 1:
        return "reads lines along K"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    yield Candidate("dot", _cost(_oriented(problem), device), partial(plan, problem, device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


FAMILY: Final = Family("dot", rejects, candidates, exclusions)


def plan(problem: Problem, device: Device) -> Plan:
    p = _oriented(problem)
    buffers: tuple[Buffer, Buffer] = ("a", "b") if p is problem else ("b", "a")
    lines, parts, threads = _lines(p), _parts(p, device), _threads(p)
    line_blocks = math.ceil(p.n / lines)
    out, out_stride, part_stride, target = None, p.out.column_stride, 0, Address(16, "out")
    if parts > 1:
        out = result.partial(p.out, parts, 0)
        out_stride = out.line_stride if out.along_m else 1
        part_stride, target = out.batch_strides[0], Address(16, "workspace")
    arguments = struct.pack(
        "<7q4i",
        *(0, 0, 0),  # addresses
        *(p.a.column_stride, p.b.column_stride),
        *(part_stride, out_stride),
        *(p.n, p.k, round_up(math.ceil(p.k / parts), _VECTOR), line_blocks),
    )
    own_finish = None if parts > 1 else p.finish  # or else that of the launch that adds the parts
    finish_at = len(arguments)
    arguments += finish.arguments(own_finish, 0)
    constants: dict[str, Constant] = {
        "lines": lines,
        "a_vectors": aligned_lines(p.a),
        "b_aligned": aligned_lines(p.b.transposed),
        "threads": threads,
        "blocks_per_sm": _BLOCKS_PER_SM,
        **finish.constants(own_finish),
        "parameter_bytes": len(arguments),
    }
    stages = [
        Stage(
            kernel=Kernel("dot", "kernels/dot.cu", tuple(constants.items()), 0),
            grid=(line_blocks * parts, 1, 1),
            threads=threads,
            arguments=arguments,
            addresses=(
                *(Address(0, buffers[0]), Address(8, buffers[1]), target),
                *finish.addresses(own_finish, finish_at),
            ),
            awaits_predecessor=True,
        )
    ]
    if out is not None:
        stages.append(result.reduce_stage(p, out, parts))
    return Plan(
        problem=problem,
        device=device,
        name="dot",
        stages=tuple(stages),
        cost=_cost(p, device),
        tiling=Tiling(
            rows=1,
            columns=lines,
            workers="warps",
            worker_rows=1,
            worker_columns=lines,
            units=line_blocks * parts,
            units_at_once=device.sm_count * _BLOCKS_PER_SM,
            parts_of_k=parts,
            worker_sets=threads // 32,
            transposed=p is not problem,
        ),
        workspace_bytes=0 if out is None else out.bytes,
        splits=parts,
    )


def _oriented(problem: Problem) -> Problem:
    """The product of a vector by the columns of a matrix that lie along K."""
    if problem.m == problem.n == 1 and problem.b.row_stride != 1:
        return problem.transposed  # each of two vectors may be the matrix
    return few_as_rows(problem)


def _lines(problem: Problem) -> int:
    """Of a block: as many as share what it reads of the vector, and no more than there are."""
    return min(_MOST_LINES, 1 << (problem.n - 1).bit_length())


def _threads(problem: Problem) -> int:
    return min(round_up(math.ceil(problem.k / _VECTOR), 32), _MOST_THREADS)


def _parts(problem: Problem, device: Device) -> int:
    """So many that the blocks fill the GPU a few times."""
    wanted = _WAVES * _BLOCKS_PER_SM * device.sm_count // math.ceil(problem.n / _lines(problem))
    worth = problem.k // (_LEAST_STEPS * _VECTOR * _MOST_THREADS)
    return max(1, min(wanted, worth, _MOST_PARTS))


def _cost(problem: Problem, device: Device) -> Cost:
    """Of an oriented problem."""
    parts, step = _parts(problem, device), _VECTOR * _threads(problem)
    share = math.ceil(problem.k / parts)
    steps = math.ceil(share / step) + _STEPS_OF_A_BLOCK
    reading = 4 * problem.k * problem.n / _READ * steps * step / share
    return Cost(product=_START + reading, reduction=_REDUCE if parts > 1 else 0.0)
