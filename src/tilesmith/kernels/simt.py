"""The `simt` family: the CUDA cores, every type and stride, Turing and later.

A sum over K is one chain of multiply-adds in the order of K, in float32 for 16-bit types,
so a result depends neither on the tile nor on the rest of the batch.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels import exact, finish, sm90
from tilesmith.kernels.family import Candidate, Family
from tilesmith.plan import Address, Buffer, Constant, Cost, Kernel, Plan, Rejection, Stage, Tiling
from tilesmith.problem import ALIGNMENT, Matrix, Problem

# torch's type -> the type in memory, the type of the arithmetic, and the bytes of the latter.
_CUDA_TYPES: Final[dict[torch.dtype, tuple[str, str, int]]] = {
    torch.float64: ("double", "double", 8),
    torch.float32: ("float", "float", 4),
    torch.float16: ("tilesmith::float16", "float", 4),
    torch.bfloat16: ("tilesmith::bfloat16", "float", 4),
    torch.int8: ("signed char", "unsigned", 4),
    torch.uint8: ("unsigned char", "unsigned", 4),
    torch.int16: ("short", "unsigned", 4),
    torch.int32: ("int", "unsigned", 4),
    torch.int64: ("long long", "unsigned long long", 8),
}

_LANES: Final = (4, 8)  # lanes_m and lanes_n in simt.cu
_BAND: Final = 8  # tile rows that share a band of the raster
_MAX_GRID_YZ: Final = 65535
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's share of the output and how its threads divide it.

    The shares are of the SM's float32 multiply-add rate (docs/measured.md has their runs).
    """

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int
    alone: float  # the share that one resident block reaches
    full: float  # the share that blocks_per_sm of them reach
    scalar: float = 0.9  # what is left of either when operands are read an element at a time
    wide_index: bool = False  # has registers to spare for 64-bit steps
    float32_only: bool = False  # slower than smaller tiles where operands are converted, or integers

    @property
    def threads(self) -> int:
        return self.m * self.n // (self.thread_m * self.thread_n)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# By the bytes of the arithmetic's type.
TILES: Final[dict[int, tuple[Tile, ...]]] = {
    4: (
        Tile(128, 256, 16, 8, 16, blocks_per_sm=1, alone=0.77, full=0.78, scalar=0.84, float32_only=True),
        Tile(128, 256, 8, 8, 16, blocks_per_sm=1, alone=0.72, full=0.725, scalar=0.97, float32_only=True),
        Tile(128, 128, 8, 8, 16, blocks_per_sm=2, alone=0.45, full=0.74, scalar=0.91, float32_only=True),
        Tile(64, 128, 8, 8, 8, blocks_per_sm=3, alone=0.34, full=0.70, scalar=0.93, wide_index=True),
        Tile(64, 64, 16, 8, 4, blocks_per_sm=4, alone=0.29, full=0.65, scalar=0.90),
        Tile(32, 32, 32, 4, 4, blocks_per_sm=4, alone=0.12, full=0.48, scalar=0.82),
    ),
    8: (
        Tile(128, 128, 4, 8, 8, blocks_per_sm=1, alone=0.36, full=0.37),
        Tile(64, 64, 8, 8, 4, blocks_per_sm=3, alone=0.16, full=0.33),
        Tile(32, 32, 8, 4, 2, blocks_per_sm=4, alone=0.06, full=0.21, wide_index=True),
    ),
}

_LARGEST_EXTENT: Final = max(max(tile.m, tile.n, tile.k) for tiles in TILES.values() for tile in tiles)

# Clocks that a block spends before its first multiply-add and after its last, and more for each
# result that a thread has to store.
_BLOCK_OVERHEAD: Final = 500.0
_STORE_OVERHEAD: Final = 50.0


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family should not do the problem: of operands of one type, it could do all of them."""
    if problem.a.dtype != problem.b.dtype:
        return "takes operands of one type"
    for_sm90 = sm90.rejects(problem, device) is None
    if problem.a.dtype != torch.float32 and for_sm90:
        # Not by cost: a row's result shall not depend on how many others there are.
        return "the tensor cores multiply these types faster"
    if for_sm90 or exact.rejects(problem, device) is None:
        return "sums K in one chain, which may have more error than torch's product"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile that suits the operands."""
    for tile in _tiles(problem):
        if _unsuited(tile, problem) is None:
            cost = _cost(problem.stored_by_rows, device, tile)
            yield Candidate(f"simt {tile}", cost, partial(plan, problem, device, tile))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The tiles that do not suit them, each with its reason."""
    for tile in _tiles(problem):
        if reason := _unsuited(tile, problem):
            yield Rejection(f"simt {tile}", reason)


FAMILY: Final = Family("simt", rejects, candidates, exclusions)


def _tiles(problem: Problem) -> tuple[Tile, ...]:
    return TILES[_CUDA_TYPES[problem.a.dtype][2]]


def _unsuited(tile: Tile, problem: Problem) -> str | None:
    if _needs_wide_index(problem) and not tile.wide_index:
        return "has no registers for the 64-bit steps that these sizes or strides need"
    if tile.float32_only and problem.a.dtype != torch.float32:
        return "is slower than smaller tiles for types other than float32"
    return None


def plan(problem: Problem, device: Device, tile: Tile, *, may_add: bool = False) -> Plan:
    """The plan that uses this tile. `may_add`: its kernel can be told to add to what the output has."""
    p = problem.stored_by_rows  # stores are vectors along a row
    order: tuple[Buffer, ...] = ("a", "b", "out") if p is problem else ("b", "a", "out")
    element, accumulator, accumulator_bytes = _CUDA_TYPES[p.a.dtype]
    a_lines, b_lines = _Lines.of(p.a, tile.m, tile), _Lines.of(p.b.transposed, tile.n, tile)
    shared_bytes = 2 * tile.k * (a_lines.pitch + b_lines.pitch) * accumulator_bytes
    arguments = _arguments(p, tile)
    finish_at = len(arguments)
    arguments += finish.arguments(p.finish, len(p.batch))
    constants: dict[str, Constant] = {
        "Element": element,
        "Output": _CUDA_TYPES[p.out.dtype][0],
        "Accumulator": accumulator,
        "Index": "long long" if _needs_wide_index(p) else "int",
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "thread_m": tile.thread_m,
        "thread_n": tile.thread_n,
        "threads": tile.threads,
        "blocks_per_sm": tile.blocks_per_sm,
        "a_along_k": a_lines.along_k,
        "a_vector": a_lines.vector,
        "a_pitch": a_lines.pitch,
        "b_along_k": b_lines.along_k,
        "b_vector": b_lines.vector,
        "b_pitch": b_lines.pitch,
        "out_vector": min(_vector(p.out), ALIGNMENT // accumulator_bytes),
        "batch_rank": len(p.batch),
        "band": _BAND,
        "may_add": may_add,
        **finish.constants(p.finish),
        "shared_bytes": shared_bytes,
        "parameter_bytes": len(arguments),
    }
    tiles, batches = math.ceil(p.m / tile.m) * math.ceil(p.n / tile.n), p.batches
    return Plan(
        problem=problem,
        device=device,
        name=f"simt {tile}",
        stages=(
            Stage(
                kernel=Kernel("simt", "kernels/simt.cu", tuple(constants.items()), shared_bytes),
                grid=(
                    tiles,
                    min(batches, _MAX_GRID_YZ),
                    math.ceil(batches / _MAX_GRID_YZ),
                ),
                threads=tile.threads,
                arguments=arguments,
                addresses=(
                    *(Address(8 * i, buffer) for i, buffer in enumerate(order)),
                    *finish.addresses(p.finish, finish_at),
                ),
            ),
        ),
        cost=_cost(p, device, tile),
        tiling=Tiling(
            rows=tile.m,
            columns=tile.n,
            workers="warps",
            worker_rows=_LANES[0] * tile.thread_m,
            worker_columns=_LANES[1] * tile.thread_n,
            units=tiles * batches,
            units_at_once=device.sm_count * tile.blocks_per_sm,
            transposed=p is not problem,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    """How an operand's tile is read: the direction of the vectors, their length, and the pitch of
    its rows in shared memory."""

    along_k: bool
    vector: int
    pitch: int

    @classmethod
    def of(cls, matrix: Matrix, extent: int, tile: Tile) -> "_Lines":
        """For a matrix whose columns run along K."""
        along_k = matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)
        line = tile.k if along_k else extent
        vector = min(_vector(matrix if along_k else matrix.transposed), line, extent * tile.k // tile.threads)
        # Vectors along K are scattered down the rows: the padding puts those rows in different banks.
        return cls(along_k, vector, extent + 4 if along_k else extent)


def _vector(matrix: Matrix) -> int:
    """The elements of the widest access along rows that never straddles an edge or an alignment."""
    if matrix.column_stride != 1:
        return 1
    size = matrix.dtype.itemsize
    common = math.gcd(matrix.columns, matrix.row_stride, *matrix.batch_strides, ALIGNMENT // size)
    return min(common, max(matrix.alignment // size, 1))


def _needs_wide_index(problem: Problem) -> bool:
    """Whether a size, or a step inside of a tile, does not fit an int. Addresses always have 64 bits."""
    strides = (stride for matrix in (problem.a, problem.b) for stride in (matrix.row_stride, matrix.column_stride))
    sizes = (problem.m, problem.n, problem.k)
    return max(*sizes, max(strides) * _LARGEST_EXTENT) > _INT_MAX - _LARGEST_EXTENT


def _arguments(problem: Problem, tile: Tile) -> bytes:
    """struct Parameters of simt.cu, which asserts its size. Everything in it has eight bytes."""
    a, b, out = problem.a, problem.b, problem.out
    batch = zip(problem.batch, a.batch_strides, b.batch_strides, out.batch_strides, strict=True)
    values = [
        *(0, 0, 0),  # addresses
        *(problem.m, problem.n, problem.k),
        *(a.row_stride, a.column_stride),
        *(b.row_stride, b.column_stride),
        *(out.row_stride, out.column_stride),
        *(math.ceil(problem.m / tile.m), math.ceil(problem.n / tile.n)),
        problem.batches,
        0,
        *(value for dimension in batch for value in dimension),
    ]
    if not problem.batch:
        values += (1, 0, 0, 0)
    return struct.pack(f"<{len(values)}q", *values)


def _cost(problem: Problem, device: Device, tile: Tile) -> Cost:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly."""
    lines = _Lines.of(problem.a, tile.m, tile), _Lines.of(problem.b.transposed, tile.n, tile)
    scalar_operands = sum(each.vector == 1 for each in lines)
    blocks = max(math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batches, 1)
    depth = math.ceil(problem.k / tile.k) * tile.k
    work = tile.m * tile.n * depth / device.multiply_adds_per_clock
    work /= 1 - (1 - tile.scalar) * scalar_operands / 2
    rounds, rest = divmod(math.ceil(blocks / device.sm_count), tile.blocks_per_sm)

    overhead = _BLOCK_OVERHEAD + _STORE_OVERHEAD * tile.thread_m * tile.thread_n

    def round_cycles(resident: int) -> float:
        return resident * work / min(tile.alone * resident, tile.full) + overhead

    return Cost(product=rounds * round_cycles(tile.blocks_per_sm) + (round_cycles(rest) if rest else 0.0))
