"""The `thin` family: float32 products of a few rows (or columns) on the tensor cores in double, which read the other
operand once.

Products are exact, and sums are rounded to float once. K is shared by the warps of a block and the blocks of a
cluster; where that is not enough, it is cut into parts, whose rounded sums a last launch adds in order.
"""

import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tilesmith.device import Device
from tilesmith.kernels import doubles, finish, result
from tilesmith.kernels.doubles import few_as_rows
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import aligned_lines, round_up
from tilesmith.plan import Address, Buffer, Constant, Cost, Kernel, Plan, Rejection, Stage, Tiling
from tilesmith.problem import Matrix, Problem

# Of kernels/thin.cu.
_MOST_ROWS: Final = 16
_GROUP_ROWS: Final = 8
_WARP_COLUMNS: Final = 64
_STEP_K: Final = 16
_WARPS: Final = {1: 8, 2: 6}  # by groups of rows: as many as there are registers for
_BLOCKS_PER_SM: Final = 2
_STAGES: Final = 3
_COLUMN_WARPS: Final = (1, 2)  # side by side; the others take turns along K
_CLUSTERS: Final = (1, 2, 4, 8)
_PARTS: Final = (1, 2, 4, 8, 16)

# Clocks, and bytes and multiply-adds a clock.
_START: Final = 9000.0
_CLUSTER: Final = 500.0
_REDUCE: Final = 3500.0
_READ: Final = 2350.0
_READ_CACHE: Final = 2800.0  # with the rows of A, which each block reads again
_READ_BLOCK: Final = 17.0
_MULTIPLY: Final = 50.0  # of an SM, conversions included


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a block does."""

    warps: int
    column_warps: int
    cluster: int  # blocks that share K
    parts: int  # of K, apart from that

    @property
    def k_warps(self) -> int:
        return self.warps // self.column_warps

    @property
    def columns(self) -> int:
        return self.column_warps * _WARP_COLUMNS

    @property
    def shares(self) -> int:
        return self.cluster * self.parts


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := doubles.rejects_single(problem, device):
        return reason
    p = few_as_rows(problem)
    if p.m > _MOST_ROWS:
        return f"is for {_MOST_ROWS} rows or columns at most"
    if not (_is_line(p.b) or _is_line(p.b.transposed)):
        return "reads an operand along contiguous lines"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    p = few_as_rows(problem)
    yield Candidate("thin", _cost(p, device, _cut(p, device)), partial(plan, problem, device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


FAMILY: Final = Family("thin", rejects, candidates, exclusions)


def plan(problem: Problem, device: Device) -> Plan:
    p = few_as_rows(problem)
    buffers: tuple[Buffer, Buffer] = ("a", "b") if p is problem else ("b", "a")
    along_k = _along_k(p)
    lines = p.b.transposed if along_k else p.b
    cut = _cut(p, device)
    column_blocks = math.ceil(p.n / cut.columns)
    if cut.parts > 1:
        out = result.partial(p.out, cut.parts, 0)
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
        *(p.m, p.n, p.k, _share_k(p, cut), column_blocks, 0),
    )
    own_finish = None if cut.parts > 1 else p.finish  # or else that of the launch that adds the parts
    finish_at = len(arguments)
    arguments += finish.arguments(own_finish, 0)
    row_groups = _row_groups(p)
    slot_bytes = (_WARP_COLUMNS + row_groups * _GROUP_ROWS) * _STEP_K * p.a.dtype.itemsize
    shared_bytes = cut.warps * _STAGES * slot_bytes
    constants: dict[str, Constant] = {
        "row_groups": row_groups,
        "column_warps": cut.column_warps,
        "cluster": cut.cluster,
        "stages": _STAGES,
        "a_vectors": aligned_lines(p.a),
        "b_along_k": along_k,
        "b_aligned": aligned_lines(lines),
        "threads": 32 * cut.warps,
        "blocks_per_sm": _BLOCKS_PER_SM,
        **finish.constants(own_finish),
        "shared_bytes": shared_bytes,
        "parameter_bytes": len(arguments),
    }
    stages = [
        Stage(
            kernel=Kernel("thin", "kernels/thin.cu", tuple(constants.items()), shared_bytes),
            grid=(column_blocks * cut.shares, 1, 1),
            threads=32 * cut.warps,
            arguments=arguments,
            addresses=(
                *(Address(0, buffers[0]), Address(8, buffers[1]), target),
                *finish.addresses(own_finish, finish_at),
            ),
            cluster=cut.cluster,
            awaits_predecessor=True,
        )
    ]
    if cut.parts > 1:
        stages.append(result.reduce_stage(p, out, cut.parts))
    return Plan(
        problem=problem,
        device=device,
        name="thin",
        stages=tuple(stages),
        cost=_cost(p, device, cut),
        tiling=Tiling(
            rows=row_groups * _GROUP_ROWS,
            columns=cut.columns,
            workers="warps",
            worker_rows=row_groups * _GROUP_ROWS,
            worker_columns=_WARP_COLUMNS,
            units=column_blocks * cut.shares,
            units_at_once=device.sm_count * _BLOCKS_PER_SM // cut.cluster * cut.cluster,
            parts_of_k=cut.shares,
            worker_sets=cut.k_warps,
            transposed=p is not problem,
        ),
        workspace_bytes=workspace_bytes,
        splits=cut.parts,
    )


def _along_k(problem: Problem) -> bool:
    """The lines of B run along K."""
    return _is_line(problem.b.transposed) and (problem.b.columns == 1 or not _is_line(problem.b))


def _row_groups(problem: Problem) -> int:
    return math.ceil(problem.m / _GROUP_ROWS)


def _is_line(lines: Matrix) -> bool:
    """Every row is contiguous."""
    return lines.columns == 1 or lines.column_stride == 1


def _cut(problem: Problem, device: Device) -> _Cut:
    """The cheapest one in which every warp has something to do."""
    warps = _WARPS[_row_groups(problem)]
    cuts = itertools.starmap(_Cut, itertools.product((warps,), _COLUMN_WARPS, _CLUSTERS, _PARTS))
    suited = (c for c in cuts if c.shares == 1 or problem.k >= c.shares * c.k_warps * _STEP_K)
    return min(suited, key=lambda cut: _cost(problem, device, cut).cycles)


def _share_k(problem: Problem, cut: _Cut) -> int:
    """K of a block. The last one may have less."""
    return round_up(math.ceil(problem.k / cut.shares), _STEP_K)


def _cost(problem: Problem, device: Device, cut: _Cut) -> Cost:
    """Of an oriented problem."""
    p = problem
    column_blocks = math.ceil(p.n / cut.columns)
    blocks = column_blocks * cut.shares
    block_b = _share_k(p, cut) * min(cut.columns, p.n)  # elements
    waves = math.ceil(blocks / (device.sm_count * _BLOCKS_PER_SM))
    reading = max(
        4 * p.k * p.n / _READ,
        4 * p.k * (p.n + p.m * column_blocks) / _READ_CACHE,
        4 * block_b * waves / _READ_BLOCK,
    )
    multiplying = _row_groups(p) * _GROUP_ROWS * block_b * math.ceil(blocks / device.sm_count) / _MULTIPLY
    return Cost(
        product=_START + max(reading, multiplying) + (_CLUSTER if cut.cluster > 1 else 0.0),
        reduction=_REDUCE if cut.parts > 1 else 0.0,
    )
