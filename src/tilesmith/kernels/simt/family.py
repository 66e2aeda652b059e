"""The `simt` family: the CUDA cores, every type and stride, Turing and later.

A sum over K is one chain of multiply-adds in the order of K, in float32 for 16-bit types,
so a result depends neither on the tile nor on the rest of the batch.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels.epilogue import EpilogueConstants
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.simt.launch import LANES, Constants, Parameters

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

_MAX_GRID_YZ: Final = 65535
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's share of the output and how its threads divide it."""

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int
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
        Tile(128, 256, 16, 8, 16, blocks_per_sm=1, float32_only=True),
        Tile(128, 256, 8, 8, 16, blocks_per_sm=1, float32_only=True),
        Tile(128, 128, 8, 8, 16, blocks_per_sm=2, float32_only=True),
        Tile(64, 128, 8, 8, 8, blocks_per_sm=3, wide_index=True),
        Tile(64, 64, 16, 8, 4, blocks_per_sm=4),
        Tile(32, 32, 32, 4, 4, blocks_per_sm=4),
    ),
    8: (
        Tile(128, 128, 4, 8, 8, blocks_per_sm=1),
        Tile(64, 64, 8, 8, 4, blocks_per_sm=3),
        Tile(32, 32, 8, 4, 2, blocks_per_sm=4, wide_index=True),
    ),
}

_TILE_NAMES: Final = frozenset(str(tile) for tiles in TILES.values() for tile in tiles)
_LARGEST_EXTENT: Final = max(max(tile.m, tile.n, tile.k) for tiles in TILES.values() for tile in tiles)


@dataclass(frozen=True, slots=True)
class TileRates:
    """The shares of the SM's float32 multiply-add rate that a tile reaches (docs/notes/2026-11-simt.md)."""

    one_block_share: float  # that one resident block reaches
    full_share: float  # that blocks_per_sm of them reach
    scalar_share: float  # what is left of either when operands are read an element at a time


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `simt` of a GPU's rates."""

    block_clocks: float  # that a block spends before its first multiply-add and after its last
    store_clocks: float  # for each result that a thread has to store
    tiles: Mapping[str, TileRates]

    def __post_init__(self) -> None:
        if self.tiles.keys() != _TILE_NAMES:
            raise ValueError(
                f"the tiles differ from the kernel's by {', '.join(sorted(self.tiles.keys() ^ _TILE_NAMES))}"
            )


def serves(problem: Problem, device: Device) -> bool:
    return problem.a.dtype == problem.b.dtype


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    return None if serves(problem, device) else "takes operands of one type"


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile that suits the operands."""
    p, r = problem.stored_by_rows, _rates(device)
    for tile in _tiles(problem):
        if _unsuited(tile, problem) is None:
            name = str(tile)
            cycles = _cost(p, device, tile, r, r.tiles[name]).cycles
            yield Candidate(f"simt {name}", cycles, partial(plan, problem, device, tile))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The tiles that do not suit them, each with its reason."""
    for tile in _tiles(problem):
        if reason := _unsuited(tile, problem):
            yield Rejection(f"simt {tile}", reason)


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
    p, r = problem.stored_by_rows, _rates(device)  # stores are vectors along a row
    element, accumulator, accumulator_bytes = _CUDA_TYPES[p.a.dtype]
    a_lines, b_lines = _Lines.of(p.a, tile.m, tile), _Lines.of(p.b.transposed, tile.n, tile)
    constants = Constants(
        Element=element,
        Output=_CUDA_TYPES[p.out.dtype][0],
        Accumulator=accumulator,
        Index="long long" if _needs_wide_index(p) else "int",
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        thread_m=tile.thread_m,
        thread_n=tile.thread_n,
        blocks_per_sm=tile.blocks_per_sm,
        a_along_k=a_lines.along_k,
        a_vector=a_lines.vector,
        a_pitch=a_lines.pitch,
        b_along_k=b_lines.along_k,
        b_vector=b_lines.vector,
        b_pitch=b_lines.pitch,
        out_vector=min(_vector(p.out), ALIGNMENT // accumulator_bytes),
        batch_dims=len(p.batch),
        may_add=may_add,
        epilogue=EpilogueConstants.of(p.epilogue),
    )
    parameters = Parameters.of(p, (tile.m, tile.n), ("a", "b") if p is problem else ("b", "a"))
    tiles, batches = parameters.tiles_m * parameters.tiles_n, p.batches
    kernel = Kernel.of(
        "simt",
        "kernels/simt/simt.cu",
        constants,
        parameters,
        threads=tile.threads,
        shared_bytes=2 * tile.k * (a_lines.pitch + b_lines.pitch) * accumulator_bytes,
    )
    grid = (tiles, min(batches, _MAX_GRID_YZ), math.ceil(batches / _MAX_GRID_YZ))
    cost = _cost(p, device, tile, r, r.tiles[str(tile)])
    tiling = Tiling(
        rows=tile.m,
        columns=tile.n,
        workers="warps",
        worker_rows=LANES[0] * tile.thread_m,
        worker_columns=LANES[1] * tile.thread_n,
        units=tiles * batches,
        units_at_once=device.sm_count * tile.blocks_per_sm,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family="simt",
        name=f"simt {tile}",
        launches=(KernelLaunch(kernel, parameters, grid, multiplies=True),),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
    )


def general_kernels(device: Device) -> list[Kernel]:
    """The kernels that do any float32 product: one for each pair of directions in which operands may be read, along K
    or across it, A's first. All of them read single elements of a batch, with 64-bit strides, and can add to what the
    output has."""
    tile = next(tile for tile in TILES[torch.float32.itemsize] if tile.wide_index)
    kernels = []
    for a_along_k, b_along_k in itertools.product((True, False), repeat=2):
        far = 2**31  # a stride that needs 64 bits
        a = torch.empty_strided((2, 3, 3), (far, far, 1) if a_along_k else (far, 1, far), device="meta")
        b = torch.empty_strided((2, 3, 3), (far, 1, far) if b_along_k else (far, far, 1), device="meta")
        out = torch.empty_strided((2, 3, 3), (9, 3, 1), device="meta")
        problem = Problem.of(a, b, out=out, accuracy="ieee")
        kernels.append(plan(problem, device, tile, may_add=True).product.kernel)
    return kernels


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
    """The elements of the max_line access along rows that never straddles an edge or an alignment."""
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


def _rates(device: Device) -> Rates:
    return rates.section(device, "simt", Rates)


def _cost(problem: Problem, device: Device, tile: Tile, r: Rates, shares: TileRates) -> Cost:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly."""
    lines = _Lines.of(problem.a, tile.m, tile), _Lines.of(problem.b.transposed, tile.n, tile)
    scalar_operands = sum(each.vector == 1 for each in lines)
    blocks = max(math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batches, 1)
    depth = math.ceil(problem.k / tile.k) * tile.k
    work = tile.m * tile.n * depth / device.multiply_adds_per_clock
    work /= 1 - (1 - shares.scalar_share) * scalar_operands / 2
    rounds, rest = divmod(math.ceil(blocks / device.sm_count), tile.blocks_per_sm)

    overhead = r.block_clocks + r.store_clocks * tile.thread_m * tile.thread_n

    def round_cycles(resident: int) -> float:
        return resident * work / min(shares.one_block_share * resident, shares.full_share) + overhead

    return Cost(product=rounds * round_cycles(tile.blocks_per_sm) + (round_cycles(rest) if rest else 0.0))
