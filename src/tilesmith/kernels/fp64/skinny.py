"""The `skinny` family: float32 products of a few rows (or columns) on the tensor cores in double, which read the other
operand once.

Products are exact, and sums are rounded to float once. K is shared by the warps of a block and the blocks of a
cluster; where that is not enough, it is cut into parts, whose sums a last launch adds in order.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Annotated, Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import Address, Int32, Int64, KernelConstants, ParameterBlock, Pointer, to
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels import output, split_k_reduce
from tilesmith.kernels.blank import blank
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters, kind_of_reads, kinds_of_reads
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp64 import common
from tilesmith.kernels.fp64.common import swap_ab_for_few_rows
from tilesmith.kernels.operand import aligned_lines, round_up

_MAX_ROWS: Final = 16
_GROUP_ROWS: Final = 8
_WARP_COLUMNS: Final = 64
_STEP_K: Final = 16
_WARPS: Final = {1: 8, 2: 6}  # by groups of rows: as many as there are registers for
_BLOCKS_PER_SM: Final = 2
_STAGES: Final = 3
_COLUMN_WARPS: Final = (1, 2)  # side by side; the others take turns along K
_CLUSTERS: Final = (1, 2, 4, 8)
_SPLIT_K: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `fp64.skinny` of a GPU's rates."""

    start_clocks: float
    cluster_clocks: float
    reduce_clocks: float
    read_bytes_per_clock: float
    cache_read_bytes_per_clock: float  # with the rows of A, which each block reads again
    block_read_bytes_per_clock: float
    multiply_adds_per_clock: float  # of an SM, conversions included


@dataclass(frozen=True)
class _Cut:
    """What a block does."""

    warps: int
    column_warps: int
    cluster: int  # blocks that share K
    split_k: int  # parts of K, apart from that

    @cached_property
    def k_warps(self) -> int:
        return self.warps // self.column_warps

    @cached_property
    def columns(self) -> int:
        return self.column_warps * _WARP_COLUMNS

    @cached_property
    def shares(self) -> int:
        return self.cluster * self.split_k


_CUTS: Final = {
    row_groups: tuple(itertools.starmap(_Cut, itertools.product((warps,), _COLUMN_WARPS, _CLUSTERS, _SPLIT_K)))
    for row_groups, warps in _WARPS.items()
}


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := common.rejects_single(problem, device):
        return reason
    if min(problem.m, problem.n) > _MAX_ROWS:
        return f"is for {_MAX_ROWS} rows or columns at most"
    p = swap_ab_for_few_rows(problem)
    if not (_is_line(p.b) or _is_line(p.b.transposed)):
        return "reads an operand along contiguous lines"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    p = swap_ab_for_few_rows(problem)
    cut = _cut(p, device)
    yield Candidate("skinny", _cost(p, device, cut).cycles, partial(plan, problem, device, cut))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of skinny.cu."""

    step_k: int = _STEP_K
    warp_columns: int = _WARP_COLUMNS
    row_groups: int
    column_warps: int
    max_cluster: int = max(_CLUSTERS)
    stages: int = _STAGES
    a_vectors: bool
    b_along_k: bool
    b_aligned: bool
    blocks_per_sm: int = _BLOCKS_PER_SM
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of skinny.cu."""

    a: Annotated[Pointer, to("const float")]
    b: Annotated[Pointer, to("const float")]
    out: Annotated[Pointer, to("void")]  # floats; if they are parts of sums, doubles
    a_stride_m: Int64
    a_stride_k: Int64
    b_line_stride: Int64
    out_is_partial: Int32
    out_part_stride: Int64
    out_stride_m: Int64
    out_stride_n: Int64
    m: Int32
    n: Int32
    k: Int32
    share_k: Int32  # of a block, a multiple of step_k
    column_blocks: Int32  # side by side
    cluster: Int32  # blocks
    epilogue: EpilogueParameters


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    if not common.runs_on(device):
        return
    for row_groups, column_warps, along_k in itertools.product(_WARPS, _COLUMN_WARPS, (True, False)):
        yield from (_kernel(row_groups, column_warps, along_k, *each) for each in kinds_of_reads())
    yield from split_k_reduce.kernels()


@cache
def _kernel(
    row_groups: int, column_warps: int, along_k: bool, a_vectors: bool, b_aligned: bool, has_epilogue: bool
) -> Kernel:
    constants = Constants(
        row_groups=row_groups,
        column_warps=column_warps,
        a_vectors=a_vectors,
        b_along_k=along_k,
        b_aligned=b_aligned,
        epilogue=EpilogueConstants(any=has_epilogue),
    )
    parameters = blank(Parameters, epilogue=EpilogueParameters.of(None, 0))
    warps = _WARPS[row_groups]
    slot_bytes = (_WARP_COLUMNS + row_groups * _GROUP_ROWS) * _STEP_K * torch.float32.itemsize
    return Kernel.of(
        "skinny",
        "kernels/fp64/skinny.cu",
        constants,
        parameters,
        threads=32 * warps,
        shared_bytes=warps * _STAGES * slot_bytes,
    )


def plan(problem: Problem, device: Device, cut: _Cut | None = None) -> Plan:
    p = swap_ab_for_few_rows(problem)
    along_k = _along_k(p)
    lines = p.b.transposed if along_k else p.b
    cut = cut or _cut(p, device)
    column_blocks = math.ceil(p.n / cut.columns)
    partials = output.partial(p.out, cut.split_k, 0, torch.float64) if cut.split_k > 1 else None
    if partials is None:
        out_strides = (p.out.row_stride, p.out.column_stride)
    else:
        out_strides = (1, partials.line_stride) if partials.along_m else (partials.line_stride, 1)
    spec = p.epilogue if partials is None else None  # or else that of the launch that adds the parts
    parameters = Parameters(
        a=Address("a" if p is problem else "b"),
        b=Address("b" if p is problem else "a"),
        out=Address("out" if partials is None else "workspace"),
        a_stride_m=p.a.row_stride,
        a_stride_k=p.a.column_stride,
        b_line_stride=lines.row_stride,
        out_is_partial=int(partials is not None),
        out_part_stride=0 if partials is None else partials.batch_strides[0],
        out_stride_m=out_strides[0],
        out_stride_n=out_strides[1],
        m=p.m,
        n=p.n,
        k=p.k,
        share_k=_share_k(p, cut),
        column_blocks=column_blocks,
        cluster=cut.cluster,
        epilogue=EpilogueParameters.of(spec, 0),
    )
    row_groups = _row_groups(p)
    reads = kind_of_reads(aligned_lines(p.a), aligned_lines(lines), spec)
    kernel = _kernel(row_groups, cut.column_warps, along_k, *reads)
    launches = [
        KernelLaunch(
            kernel,
            parameters,
            grid=(column_blocks * cut.shares, 1, 1),
            cluster=cut.cluster,
            awaits_predecessor=True,
            multiplies=True,
        )
    ]
    if partials is not None:
        launches.append(split_k_reduce.launch(p, partials, cut.split_k))
    cost = _cost(p, device, cut)
    tiling = Tiling(
        rows=row_groups * _GROUP_ROWS,
        columns=cut.columns,
        workers="warps",
        worker_rows=row_groups * _GROUP_ROWS,
        worker_columns=_WARP_COLUMNS,
        units=column_blocks * cut.shares,
        units_at_once=device.sm_count * _BLOCKS_PER_SM // cut.cluster * cut.cluster,
        parts_of_k=cut.shares,
        worker_sets=cut.k_warps,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family="skinny",
        name="skinny",
        launches=tuple(launches),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
        workspace_bytes=0 if partials is None else partials.bytes,
        split_k=cut.split_k,
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
    cuts, r, steps = _CUTS[_row_groups(problem)], _rates(device), problem.k // _STEP_K
    suited = [c for c in cuts if c.shares == 1 or steps >= c.shares * c.k_warps]
    return min(suited, key=lambda cut: sum(_clocks(problem, device, cut, r)))


def _share_k(problem: Problem, cut: _Cut) -> int:
    """K of a block. The last one may have less."""
    return round_up(math.ceil(problem.k / cut.shares), _STEP_K)


def _rates(device: Device) -> Rates:
    return rates.section(device, "fp64.skinny", Rates)


def _cost(problem: Problem, device: Device, cut: _Cut) -> Cost:
    product, reduction = _clocks(problem, device, cut, _rates(device))
    return Cost(product=product, reduction=reduction)


def _clocks(problem: Problem, device: Device, cut: _Cut, r: Rates) -> tuple[float, float]:
    """The clocks of a product that has fewer rows than columns, and of the launch that adds its parts."""
    p, n, k, columns = problem, problem.n, problem.k, cut.columns
    column_blocks = math.ceil(n / columns)
    blocks = column_blocks * cut.shares
    block_b = _share_k(p, cut) * min(columns, n)  # elements
    waves = math.ceil(blocks / (device.sm_count * _BLOCKS_PER_SM))
    reading = max(
        4 * k * n / r.read_bytes_per_clock,
        4 * k * (n + p.m * column_blocks) / r.cache_read_bytes_per_clock,
        4 * block_b * waves / r.block_read_bytes_per_clock,
    )
    multiply_adds = _row_groups(p) * _GROUP_ROWS * block_b * math.ceil(blocks / device.sm_count)
    multiplying = multiply_adds / r.multiply_adds_per_clock
    product = r.start_clocks + max(reading, multiplying) + (r.cluster_clocks if cut.cluster > 1 else 0.0)
    return product, r.reduce_clocks if cut.split_k > 1 else 0.0
