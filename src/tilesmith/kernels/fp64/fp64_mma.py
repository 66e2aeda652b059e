"""The `fp64_mma` family: float32 on the tensor cores' product of doubles, for small products or short sums.

Products are exact, sums are of doubles, and a result is rounded once: for any values, in one launch.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Annotated, Final

from tilesmith.core.device import Device
from tilesmith.core.params import (
    MAX_BATCH_DIMS,
    Address,
    Int32,
    Int32s,
    Int64,
    Int64s,
    KernelConstants,
    ParameterBlock,
    Pointer,
    to,
)
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.blank import blank
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp64 import common, mma_tiles
from tilesmith.kernels.fp64.mma_tiles import MMA, Lines, blocks_per_sm, rates_of
from tilesmith.kernels.fp64.mma_tiles import TILES as TILES
from tilesmith.kernels.fp64.mma_tiles import Tile as Tile
from tilesmith.kernels.operand import aligned_lines

_MAX_TILES_M: Final = 65535  # of the grid's second dimension
_INT_MAX: Final = 2**31 - 1


_LARGEST_STEP: Final = max(max(tile.m, tile.n, tile.k) for tile in TILES)


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := common.rejects(problem, device):
        return reason
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    m, n, batches, largest = problem.m, problem.n, problem.batches, TILES[0]
    is_countable = _is_countable(problem)
    if is_countable and _fits_a_grid(largest, m, n, batches) and _fits_a_grid(largest, n, m, batches):
        return None  # whichever way round
    p = problem.stored_by_rows
    if not is_countable or not any(_fits_a_grid(tile, p.m, p.n, batches) for tile in TILES):
        return "its sizes or strides cannot be counted with 32 bits"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile that suits the product."""
    return (_candidate(problem, device, tile, cycles) for tile, cycles in _costs(problem, device))


def cheapest(problem: Problem, device: Device) -> Candidate:
    """The one that is expected to take the least time."""
    return _candidate(problem, device, *min(_costs(problem, device), key=itemgetter(1)))


def _costs(problem: Problem, device: Device) -> Iterator[tuple[Tile, float]]:
    p, r = problem.stored_by_rows, rates_of(device)
    lines = Lines.of(p.a), Lines.of(p.b.transposed)
    tiles = [tile for tile in TILES if _fits_a_grid(tile, p.m, p.n, p.batches)]  # a problem that is not rejected
    return ((tile, mma_tiles.cycles(p, device, tile, r, *lines)) for tile in tiles)


def _candidate(problem: Problem, device: Device, tile: Tile, cycles: float) -> Candidate:
    return Candidate(f"fp64_mma {tile}", cycles, partial(plan, problem, device, tile))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The tiles that do not suit it, each with its reason."""
    p = problem.stored_by_rows
    for tile in TILES:
        if reason := _unsuited(tile, p):
            yield Rejection(f"fp64_mma {tile}", reason)


def _unsuited(tile: Tile, p: Problem) -> str | None:
    if not _is_countable(p):
        return "sizes, or steps inside of a tile, cannot be counted with 32 bits"
    return None if _fits_a_grid(tile, p.m, p.n, p.batches) else "has more tiles than a grid may have"


def _is_countable(p: Problem) -> bool:
    a, b = p.a, p.b
    stride = max(a.row_stride, a.column_stride, b.row_stride, b.column_stride)
    return max(p.m, p.n, p.k, stride * _LARGEST_STEP) <= _INT_MAX - _LARGEST_STEP


def _fits_a_grid(tile: Tile, m: int, n: int, batches: int) -> bool:
    return math.ceil(m / tile.m) <= _MAX_TILES_M and math.ceil(n / tile.n) * batches <= _INT_MAX


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of fp64_mma.cu."""

    mma_m: int = MMA[0]
    mma_n: int = MMA[1]
    mma_k: int = MMA[2]
    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    warps_k: int
    blocks_per_sm: int
    stages: int
    a_along_k: bool
    a_aligned: bool
    b_along_k: bool
    b_aligned: bool
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of fp64_mma.cu."""

    a: Annotated[Pointer, to("const float")]
    b: Annotated[Pointer, to("const float")]
    out: Annotated[Pointer, to("float")]
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_k: Int64
    b_stride_n: Int64
    out_stride_m: Int64
    out_stride_n: Int64
    a_batch_strides: Int64s  # the fastest dimension first
    b_batch_strides: Int64s
    out_batch_strides: Int64s
    batch: Int32s
    m: Int32
    n: Int32
    k: Int32
    tiles_n: Int32
    out_is_aligned: Int32
    epilogue: EpilogueParameters


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    if not common.runs_on(device):
        return
    for tile, a_along_k, b_along_k in itertools.product(TILES, (True, False), (True, False)):
        for a_aligned, b_aligned, has_epilogue in common.kinds_of_reads():
            yield _kernel(tile, Lines(a_along_k, a_aligned), Lines(b_along_k, b_aligned), has_epilogue)


@cache
def _kernel(tile: Tile, a: Lines, b: Lines, has_epilogue: bool) -> Kernel:
    constants = Constants(
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        warps_m=tile.warps_m,
        warps_n=tile.warps_n,
        warps_k=tile.warps_k,
        blocks_per_sm=blocks_per_sm(tile, a, b),
        stages=tile.stages,
        a_along_k=a.along_k,
        a_aligned=a.aligned,
        b_along_k=b.along_k,
        b_aligned=b.aligned,
        epilogue=EpilogueConstants(any=has_epilogue),
    )
    dims = (0,) * MAX_BATCH_DIMS
    parameters = blank(
        Parameters,
        a_batch_strides=dims,
        b_batch_strides=dims,
        out_batch_strides=dims,
        batch=dims,
        epilogue=EpilogueParameters.of(None, MAX_BATCH_DIMS),
    )
    return Kernel.of(
        "fp64_mma",
        "kernels/fp64/fp64_mma.cu",
        constants,
        parameters,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
    )


def plan(problem: Problem, device: Device, tile: Tile) -> Plan:
    """The plan that uses this tile."""
    p = problem.stored_by_rows
    tiles_m, tiles_n = math.ceil(p.m / tile.m), math.ceil(p.n / tile.n)
    a, b = Lines.of(p.a), Lines.of(p.b.transposed)
    missing_dims = MAX_BATCH_DIMS - len(p.batch)

    def batch_strides(matrix: Matrix) -> tuple[int, ...]:
        return *reversed(matrix.batch_strides), *(0,) * missing_dims

    parameters = Parameters(
        a=Address("a" if p is problem else "b"),
        b=Address("b" if p is problem else "a"),
        out=Address("out"),
        a_stride_m=p.a.row_stride,
        a_stride_k=p.a.column_stride,
        b_stride_k=p.b.row_stride,
        b_stride_n=p.b.column_stride,
        out_stride_m=p.out.row_stride,
        out_stride_n=p.out.column_stride,
        a_batch_strides=batch_strides(p.a),
        b_batch_strides=batch_strides(p.b),
        out_batch_strides=batch_strides(p.out),
        batch=(*reversed(p.batch), *(1,) * missing_dims),
        m=p.m,
        n=p.n,
        k=p.k,
        tiles_n=tiles_n,
        out_is_aligned=int(aligned_lines(p.out) and p.out.column_stride == 1),
        epilogue=EpilogueParameters.of(p.epilogue, MAX_BATCH_DIMS, fastest_first=True),
    )
    _, _, has_epilogue = common.kind_of_reads(a.aligned, b.aligned, p.epilogue)
    kernel = _kernel(tile, a, b, has_epilogue)
    launch = KernelLaunch(
        kernel, parameters, (tiles_n * p.batches, tiles_m, 1), awaits_predecessor=True, multiplies=True
    )
    cost = Cost(product=mma_tiles.cycles(p, device, tile, rates_of(device), a, b))
    tiling = Tiling(
        rows=tile.m,
        columns=tile.n,
        workers="warps",
        worker_rows=tile.m // tile.warps_m,
        worker_columns=tile.n // tile.warps_n,
        units=tiles_m * tiles_n * p.batches,
        units_at_once=device.sm_count * blocks_per_sm(tile, a, b),
        worker_sets=tile.warps_k,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family="fp64_mma",
        name=f"fp64_mma {tile}",
        launches=(launch,),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
    )
