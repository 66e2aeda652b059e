"""The `outer` family: float32 products of a short K, which are the sums of a few outer products, on the CUDA cores.

A sum is one chain of multiply-adds in the order of K. To store the results takes most of the time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Final

import torch

from tilesmith.core import rates
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
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.operand import aligned_lines

NAME: Final = "outer"
_TILE_M: Final = 64
_TILE_N: Final = 128
_THREADS: Final = 256
_BLOCKS_PER_SM: Final = 4
_MAX_K: Final = 32
_MAX_K_OF_TF32: Final = 16  # from there on tensor cores are faster
_VECTOR: Final = 4
_MAX_TILES_M: Final = 65535  # of the grid's second dimension
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `outer` of a GPU's rates."""

    start_clocks: float
    block_clocks: float  # that each of an SM's blocks takes
    step_clocks: float  # and besides for each step of K
    odd_store_clocks: float  # and besides where lines are not aligned
    aligned_share: float  # by which what blocks take is multiplied where they are
    odd_share: float  # and where they are not


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of outer.cu."""

    tile_m: int = _TILE_M
    tile_n: int = _TILE_N
    max_k: int = _MAX_K
    blocks_per_sm: int = _BLOCKS_PER_SM
    stores_vectors: bool


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of outer.cu."""

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
    a_along_k: Int32  # neighbours in memory are
    b_along_k: Int32


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if not _runs_on(device):
        return "was measured on compute capability 9.0 alone"
    if {problem.a.dtype, problem.b.dtype, problem.out.dtype} != {torch.float32}:
        return "is for operands and outputs of float32"
    return None


def _runs_on(device: Device) -> bool:
    return device.capability == (9, 0)


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    most = _MAX_K_OF_TF32 if problem.accuracy == "tf32" else _MAX_K
    if not 0 < problem.k <= most:
        return f"is for a K of 1 to {most}"
    if problem.is_empty:
        return "there is nothing to multiply"
    if problem.epilogue is not None:
        return "stores sums as they are"
    if problem.a.packed or problem.b.packed:
        return "has no use for packed operands"
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    (tiles_m, tiles_n), p = _tiles(problem.stored_by_rows), problem.stored_by_rows
    if tiles_m > _MAX_TILES_M or tiles_n * p.batches > _INT_MAX or max(p.m, p.n) > _INT_MAX - _TILE_N:
        return "has more tiles than a grid may have"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """The one plan there is."""
    yield Candidate(NAME, _cost(problem.stored_by_rows, device).cycles, partial(plan, problem, device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    return iter(())


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    return (_kernel(stores_vectors) for stores_vectors in (False, True) if _runs_on(device))


@cache
def _kernel(stores_vectors: bool) -> Kernel:
    dims = (0,) * MAX_BATCH_DIMS
    parameters = blank(Parameters, a_batch_strides=dims, b_batch_strides=dims, out_batch_strides=dims, batch=dims)
    return Kernel.of(
        "outer",
        "kernels/outer/outer.cu",
        Constants(stores_vectors=stores_vectors),
        parameters,
        threads=_THREADS,
        shared_bytes=_MAX_K * (_TILE_M + _TILE_N + 2 * _VECTOR) * torch.float32.itemsize,
    )


def plan(problem: Problem, device: Device) -> Plan:
    p = problem.stored_by_rows
    (tiles_m, tiles_n), missing_dims = _tiles(p), MAX_BATCH_DIMS - len(p.batch)

    def fastest_first(strides: tuple[int, ...]) -> tuple[int, ...]:
        return *reversed(strides), *(0,) * missing_dims

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
        a_batch_strides=fastest_first(p.a.batch_strides),
        b_batch_strides=fastest_first(p.b.batch_strides),
        out_batch_strides=fastest_first(p.out.batch_strides),
        batch=(*reversed(p.batch), *(1,) * missing_dims),
        m=p.m,
        n=p.n,
        k=p.k,
        tiles_n=tiles_n,
        a_along_k=int(_runs_along_k(p.a)),
        b_along_k=int(_runs_along_k(p.b.transposed)),
    )
    kernel = _kernel(_stores_vectors(p))
    grid = (tiles_n * p.batches, tiles_m, 1)
    launch = KernelLaunch(kernel, parameters, grid, awaits_predecessor=True, multiplies=True)
    tiling = Tiling(
        rows=_TILE_M,
        columns=_TILE_N,
        workers="warps",
        worker_rows=_TILE_M * 32 // _THREADS,
        worker_columns=_TILE_N,
        units=math.prod(grid),
        units_at_once=device.sm_count * _BLOCKS_PER_SM,
        swap_ab=p is not problem,
    )
    cost = _cost(p, device)
    return Plan(
        problem=problem,
        device=device,
        family=NAME,
        name=NAME,
        launches=(launch,),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
    )


def _tiles(p: Problem) -> tuple[int, int]:
    return math.ceil(p.m / _TILE_M), math.ceil(p.n / _TILE_N)


def _runs_along_k(matrix: Matrix) -> bool:
    """Whether its neighbours in memory do. The matrix's columns run along K."""
    return matrix.row_stride != 1 and matrix.column_stride <= matrix.row_stride


def _stores_vectors(p: Problem) -> bool:
    return aligned_lines(p.out) and p.out.column_stride == 1 and p.n % _VECTOR == 0


def _cost(p: Problem, device: Device) -> Cost:
    """The cost of a product that is stored by rows. Warps whose rows are past the output's edge do nothing."""
    r, (tiles_m, tiles_n) = rates.section(device, "outer", Rates), _tiles(p)
    blocks = tiles_m * tiles_n * p.batches / device.sm_count
    filled, vectors = p.m / (tiles_m * _TILE_M), _stores_vectors(p)
    of_rows = p.k * r.step_clocks + (0.0 if vectors else r.odd_store_clocks)
    work = (math.ceil(blocks) if blocks < _BLOCKS_PER_SM else blocks) * (r.block_clocks + filled * of_rows)
    return Cost(product=r.start_clocks + work * (r.aligned_share if vectors else r.odd_share))
