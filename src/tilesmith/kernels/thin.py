"""The `thin` family: float32 products of a few rows (or columns) on the CUDA cores, which read the other
operand once.

K is cut into parts of at most 512, whose sums a last launch adds in order. Within a part, sums are of 64 products at
most, or a tree.
"""

import math
import struct
from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels import result
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import aligned_lines, round_up
from tilesmith.plan import Address, Buffer, Constant, Kernel, Plan, Rejection, Stage
from tilesmith.problem import Matrix, Problem

# Of kernels/thin.cu.
_MOST_ROWS: Final = 16
_THREADS: Final = 128
_MOST_K: Final = 512  # of a part
_LEAST_K: Final = 64
_BLOCKS_PER_SM: Final = 3

# Clocks, and bytes and multiply-adds a clock. Estimates: docs/measured.md has what they are worth.
_START: Final = 14000.0
_READ: Final = 2150.0
_PARTIAL: Final = 1100.0
_LATENCY: Final = 175.0  # clocks of a step along K, however few threads there are
_SHARE: Final = 0.6  # of the SM's multiply-adds


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if device.capability != (9, 0):
        return "starts its launches as only compute capability 9.0 can"
    if problem.a.dtype != torch.float32 or problem.accuracy == "ieee":
        return "is for float32, and does not sum in one chain"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if problem.batch:
        return "does single products"
    p = _oriented(problem)
    if p.m > _MOST_ROWS:
        return f"is for {_MOST_ROWS} rows or columns at most"
    if not (_is_line(p.b) or _is_line(p.b.transposed)):
        return "reads an operand along contiguous lines"
    if max(p.n, p.k) > 2**31 - 2**16:
        return "its sizes cannot be counted with 32 bits"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    yield Candidate("thin", _cycles(problem, device), partial(plan, problem, device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


FAMILY: Final = Family("thin", rejects, candidates, exclusions)


def plan(problem: Problem, device: Device) -> Plan:
    p = _oriented(problem)
    buffers: tuple[Buffer, Buffer] = ("a", "b") if p is problem else ("b", "a")
    along_k = _along_k(p)
    lines = p.b.transposed if along_k else p.b
    column_blocks, part_k, parts = _cut(p, device)
    if parts > 1:
        out = result.partial(p.out, parts, 0)
        out_strides = (1, out.line_stride) if out.along_m else (out.line_stride, 1)
        part_stride, workspace_bytes, target = out.batch_strides[0], out.bytes, Address(16, "workspace")
    else:
        out_strides = (p.out.row_stride, p.out.column_stride)
        part_stride, workspace_bytes, target = 0, 0, Address(16, "out")
    arguments = struct.pack(
        "<9q6i",
        *(0, 0, 0),  # addresses
        *(p.a.row_stride, p.a.column_stride),
        lines.row_stride,
        *(part_stride, *out_strides),
        *(p.m, p.n, p.k, part_k, column_blocks, 0),
    )
    constants: dict[str, Constant] = {
        "rows": 1 << (p.m - 1).bit_length(),
        "columns": _columns(p),
        "b_along_k": along_k,
        "b_aligned": aligned_lines(lines),
        "threads": _THREADS,
        "parameter_bytes": len(arguments),
    }
    stages = [
        Stage(
            kernel=Kernel("thin", "kernels/thin.cu", tuple(constants.items()), 0),
            grid=(column_blocks * parts, 1, 1),
            threads=_THREADS,
            arguments=arguments,
            addresses=(Address(0, buffers[0]), Address(8, buffers[1]), target),
            awaits_predecessor=True,
        )
    ]
    if parts > 1:
        stages.append(result.reduce_stage(p, out, parts))
    return Plan(
        problem=problem,
        device=device,
        name="thin",
        stages=tuple(stages),
        cycles=_cycles(problem, device),
        workspace_bytes=workspace_bytes,
        splits=parts,
    )


def _oriented(problem: Problem) -> Problem:
    """The few are the rows."""
    return problem.transposed if problem.n < problem.m else problem


def _along_k(problem: Problem) -> bool:
    """The lines of B run along K."""
    return _is_line(problem.b.transposed) and (problem.b.columns == 1 or not _is_line(problem.b))


def _columns(problem: Problem) -> int:
    """Of a thread, or of a warp. With many rows, registers for fewer."""
    return 2 if problem.m > 8 and not _along_k(problem) else 4


def _is_line(lines: Matrix) -> bool:
    """Every row is contiguous."""
    return lines.columns == 1 or lines.column_stride == 1


def _cut(problem: Problem, device: Device) -> tuple[int, int, int]:
    """Blocks side by side, K of a part, and parts: so that all SMs have enough to do."""
    blocks = device.sm_count * _BLOCKS_PER_SM
    if _along_k(problem):
        most = math.ceil(problem.n / (_columns(problem) * _THREADS // 32))
        part_k = min(_MOST_K, round_up(problem.k, _LEAST_K))
        parts = math.ceil(problem.k / part_k)
        return min(most, max(blocks // parts, 1)), part_k, parts
    column_blocks = math.ceil(problem.n / (_columns(problem) * _THREADS))
    wanted = math.ceil(problem.k / max(blocks // column_blocks, 1))
    part_k = min(max(round_up(wanted, _LEAST_K), _LEAST_K), _MOST_K)
    return column_blocks, part_k, math.ceil(problem.k / part_k)


def _cycles(problem: Problem, device: Device) -> float:
    p = _oriented(problem)
    _, part_k, parts = _cut(p, device)
    rows = 1 << (p.m - 1).bit_length()
    reading = p.k * p.n * 4 / _READ
    multiplying = rows * p.k * p.n / (_SHARE * device.multiply_adds_per_clock * device.sm_count)
    adding = 8 * p.m * p.n * parts / _PARTIAL if parts > 1 else 0.0
    waiting = 0.0 if _along_k(p) else part_k * _LATENCY
    return _START + max(reading, multiplying, waiting) + adding
