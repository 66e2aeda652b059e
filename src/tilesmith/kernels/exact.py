"""The `exact` family: float32 on the tensor cores' product of doubles, for small products or short sums.

Products are exact, sums are of doubles, and a result is rounded once: for any values, in one launch.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tilesmith.device import Device
from tilesmith.kernels import doubles, finish
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import MOST_BATCH_DIMENSIONS, aligned_lines
from tilesmith.plan import Address, Buffer, Constant, Cost, Kernel, Plan, Rejection, Stage, Tiling
from tilesmith.problem import Matrix, Problem

_MMA: Final = (16, 8, 16)  # mma_m, mma_n and mma_k in exact.cu
_MOST_TILES_M: Final = 65535  # of the grid's second dimension
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's share of the output, K of a stage of its ring, and how its warps divide both."""

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    warps_k: int
    stages: int
    blocks_per_sm: int
    fewer_if_scalar: int = 0  # blocks, where single values are copied: each has an address

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.k * (self.m + self.n) * 4

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


TILES: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=3, fewer_if_scalar=1),
    Tile(32, 64, 64, warps_m=2, warps_n=2, warps_k=2, stages=3, blocks_per_sm=2),
    Tile(32, 32, 64, warps_m=2, warps_n=2, warps_k=2, stages=4, blocks_per_sm=2),
    Tile(16, 32, 64, warps_m=1, warps_n=2, warps_k=4, stages=4, blocks_per_sm=2),
    Tile(16, 16, 128, warps_m=1, warps_n=1, warps_k=4, stages=3, blocks_per_sm=4),
)
_LARGEST_STEP: Final = max(max(tile.m, tile.n, tile.k) for tile in TILES)

# Clocks, and multiply-adds, values and bytes a clock of an SM: fitted to 45 timings of 9 products, 7% off (root mean
# square).
_START: Final = 7600.0  # of the launch, to the first values and from the last
_BLOCK: Final = 2020.0  # of a block: the same where another one went before
_MULTIPLY: Final = 90.0
_CONVERT: Final = 9.0
_LOAD: Final = 38.5  # from L2, when all SMs ask
_LOAD_ALONE: Final = 16.0  # when few do: latency
_SCALAR_LOAD: Final = 0.5  # what is left of either where operands are copied a value at a time
_ALONE: Final = 0.79  # the share of an SM that one block reaches
_STORE: Final = 0.008  # of a result
_RESIDUAL: Final = 113.0  # of a value of a residual that a thread reads
_MEMORY: Final = 2300.0  # bytes, of the whole device


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := doubles.rejects(problem, device):
        return reason
    if len(problem.batch) > MOST_BATCH_DIMENSIONS:
        return f"walks {MOST_BATCH_DIMENSIONS} batch dimensions at most, and this product has {len(problem.batch)}"
    if all(_unsuited(tile, problem) for tile in TILES):
        return "its sizes or strides cannot be counted with 32 bits"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile that suits the product."""
    for tile in TILES:
        if _unsuited(tile, problem) is None:
            cost = _cost(problem.stored_by_rows, device, tile)
            yield Candidate(f"exact {tile}", cost, partial(plan, problem, device, tile))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The tiles that do not suit it, each with its reason."""
    for tile in TILES:
        if reason := _unsuited(tile, problem):
            yield Rejection(f"exact {tile}", reason)


FAMILY: Final = Family("exact", rejects, candidates, exclusions)


def _unsuited(tile: Tile, problem: Problem) -> str | None:
    p = problem.stored_by_rows
    strides = (stride for matrix in (p.a, p.b) for stride in (matrix.row_stride, matrix.column_stride))
    if max(p.m, p.n, p.k, max(strides) * _LARGEST_STEP) > _INT_MAX - _LARGEST_STEP:
        return "sizes, or steps inside of a tile, cannot be counted with 32 bits"
    if math.ceil(p.m / tile.m) > _MOST_TILES_M or math.ceil(p.n / tile.n) * p.batches > _INT_MAX:
        return "has more tiles than a grid may have"
    return None


def plan(problem: Problem, device: Device, tile: Tile) -> Plan:
    """The plan that uses this tile."""
    p = problem.stored_by_rows
    order: tuple[Buffer, ...] = ("a", "b", "out") if p is problem else ("b", "a", "out")
    tiles_m, tiles_n = math.ceil(p.m / tile.m), math.ceil(p.n / tile.n)
    a, b = _Lines.of(p.a), _Lines.of(p.b.transposed)
    more_dimensions = MOST_BATCH_DIMENSIONS - len(p.batch)
    arguments = struct.pack(
        "<18q8i",
        *(0, 0, 0),  # addresses
        *(p.a.row_stride, p.a.column_stride),
        *(p.b.row_stride, p.b.column_stride),
        *(p.out.row_stride, p.out.column_stride),
        *(stride for m in (p.a, p.b, p.out) for stride in (*reversed(m.batch_strides), *[0] * more_dimensions)),
        *(*reversed(p.batch), *[1] * more_dimensions),
        *(p.m, p.n, p.k, tiles_n, 0),
    )
    finish_at = len(arguments)
    arguments += finish.arguments(p.finish, len(p.batch), fastest_first=True)
    blocks_per_sm = _blocks_per_sm(tile, a, b)
    constants: dict[str, Constant] = {
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "warps_m": tile.warps_m,
        "warps_n": tile.warps_n,
        "warps_k": tile.warps_k,
        "threads": tile.threads,
        "blocks_per_sm": blocks_per_sm,
        "stages": tile.stages,
        "a_along_k": a.along_k,
        "a_aligned": a.aligned,
        "b_along_k": b.along_k,
        "b_aligned": b.aligned,
        "out_aligned": aligned_lines(p.out) and p.out.column_stride == 1,
        "batch_rank": len(p.batch),
        **finish.constants(p.finish),
        "shared_bytes": tile.shared_bytes,
        "parameter_bytes": len(arguments),
    }
    return Plan(
        problem=problem,
        device=device,
        name=f"exact {tile}",
        stages=(
            Stage(
                kernel=Kernel("exact", "kernels/exact.cu", tuple(constants.items()), tile.shared_bytes),
                grid=(tiles_n * p.batches, tiles_m, 1),
                threads=tile.threads,
                arguments=arguments,
                addresses=(
                    *(Address(8 * i, buffer) for i, buffer in enumerate(order)),
                    *finish.addresses(p.finish, finish_at),
                ),
                awaits_predecessor=True,
            ),
        ),
        cost=_cost(p, device, tile),
        tiling=Tiling(
            rows=tile.m,
            columns=tile.n,
            workers="warps",
            worker_rows=tile.m // tile.warps_m,
            worker_columns=tile.n // tile.warps_n,
            units=tiles_m * tiles_n * p.batches,
            units_at_once=device.sm_count * blocks_per_sm,
            worker_sets=tile.warps_k,
            transposed=p is not problem,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    """How an operand is copied: along which direction, and whether 16 bytes at a time."""

    along_k: bool
    aligned: bool

    @classmethod
    def of(cls, matrix: Matrix) -> "_Lines":
        """For a matrix whose columns run along K."""
        along_k = matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)
        return cls(along_k, aligned_lines(matrix if along_k else matrix.transposed))


def _blocks_per_sm(tile: Tile, a: _Lines, b: _Lines) -> int:
    return tile.blocks_per_sm if a.aligned and b.aligned else tile.blocks_per_sm - tile.fewer_if_scalar


def _cost(problem: Problem, device: Device, tile: Tile) -> Cost:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly."""
    blocks = math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batches
    on_an_sm = math.ceil(blocks / device.sm_count)
    depth = math.ceil(problem.k / _MMA[2]) * _MMA[2]

    a, b = _Lines.of(problem.a), _Lines.of(problem.b.transposed)
    resident = _blocks_per_sm(tile, a, b)
    scalar = (not a.aligned) + (not b.aligned)
    busy = min(blocks / device.sm_count, 1.0)
    load_rate = (_LOAD * busy + _LOAD_ALONE * (1 - busy)) * (1 - (1 - _SCALAR_LOAD) * scalar / 2)
    multiply = tile.m * tile.n / _MULTIPLY
    convert = (tile.m * tile.warps_n + tile.n * tile.warps_m) / _CONVERT
    load = (tile.m + tile.n) * 4 / load_rate
    share = 1.0 if min(on_an_sm, resident) > 1 else _ALONE
    work = depth * max(multiply / share, convert / share, load) + _STORE * tile.m * tile.n
    has_residual = problem.finish is not None and problem.finish.residual is not None
    block = _BLOCK + (_RESIDUAL * tile.m * tile.n / tile.threads if has_residual else 0.0)
    working = math.ceil(on_an_sm / resident) * block + on_an_sm * work
    moving = 4 * problem.batches * (problem.m * problem.n + (problem.m + problem.n) * problem.k) / _MEMORY
    return Cost(product=_START + max(working, moving))
