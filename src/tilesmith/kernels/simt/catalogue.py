"""The kernels of simt.cu: which there are, and which of them a product takes.

A kernel is one for a type, a tile and a way to read each operand. To have few of them, operands are read in vectors of
16 bytes of the arithmetic's type or by single elements, and only float32 has what is between; and where single elements
are read, a kernel may have any epilogue.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.plan import Kernel
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels.epilogue import EpilogueConstants
from tilesmith.kernels.simt.launch import BLANK_PARAMETERS, Constants


@dataclass(frozen=True, slots=True)
class _Type:
    """An element type: in memory, in arithmetic, and what a result may be stored in besides."""

    element: str
    accumulator: str
    accumulator_bytes: int
    wide_output: str

    @property
    def vector(self) -> int:
        """Elements of the longest access."""
        return ALIGNMENT // self.accumulator_bytes


_TYPES: Final[dict[torch.dtype, _Type]] = {
    torch.float64: _Type("double", "double", 8, "double"),
    torch.float32: _Type("float", "float", 4, "float"),
    torch.float16: _Type("tilesmith::float16", "float", 4, "float"),
    torch.bfloat16: _Type("tilesmith::bfloat16", "float", 4, "float"),
    torch.int8: _Type("signed char", "unsigned", 4, "int"),
    torch.uint8: _Type("unsigned char", "unsigned", 4, "int"),
    torch.int16: _Type("short", "unsigned", 4, "int"),
    torch.int32: _Type("int", "unsigned", 4, "int"),
    torch.int64: _Type("long long", "unsigned long long", 8, "long long"),
}
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
    wide_index: bool = False  # has registers to spare for 64-bit steps, and takes them where it reads single elements

    @property
    def threads(self) -> int:
        return self.m * self.n // (self.thread_m * self.thread_n)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# By the bytes of the arithmetic's type.
TILES: Final[dict[int, tuple[Tile, ...]]] = {
    4: (
        Tile(128, 256, 16, 8, 16, blocks_per_sm=1),
        Tile(128, 256, 8, 8, 16, blocks_per_sm=1),
        Tile(128, 128, 8, 8, 16, blocks_per_sm=2),
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
TILE_NAMES: Final = frozenset(str(tile) for tiles in TILES.values() for tile in tiles)
_LARGEST_EXTENT: Final = max(max(tile.m, tile.n, tile.k) for tiles in TILES.values() for tile in tiles)

# The tiles of float32, by the vectors that operands are read in. By the cost model, more of them would save 0.1%.
_FLOAT32_TILES: Final[dict[tuple[int, int], tuple[str, ...]]] = {
    (4, 4): ("128x256x16", "128x128x8", "64x128x8", "64x64x16", "32x32x32"),
    (2, 2): ("128x256x16", "64x128x8", "64x64x16", "32x32x32"),
    (4, 1): ("128x256x8", "64x128x8", "64x64x16", "32x32x32"),
    (1, 4): ("128x256x8", "64x128x8", "64x64x16", "32x32x32"),
    (1, 1): ("128x256x8", "64x128x8", "64x64x16", "32x32x32"),
}
# Of types that are converted, and of integers: larger ones are slower, and with vectors 64x128x8 is no faster
# (docs/notes/2026-11-simt.md).
_SMALL_TILES: Final[dict[tuple[int, int], tuple[str, ...]]] = {
    (4, 4): ("64x64x16", "32x32x32"),
    (1, 1): ("64x128x8", "64x64x16", "32x32x32"),
}
_TILES_OF_8_BYTES: Final = dict.fromkeys(((2, 2), (1, 1)), tuple(str(tile) for tile in TILES[8]))


@dataclass(frozen=True, slots=True)
class Reads:
    """How both operands are read: in vectors of so many elements, along K or across it."""

    a_along_k: bool
    b_along_k: bool
    vectors: tuple[int, int]

    @classmethod
    def of(cls, problem: Problem) -> "Reads":
        a, b, dtype = problem.a, problem.b.transposed, problem.a.dtype
        a_along_k, b_along_k = _runs_along_k(a), _runs_along_k(b)
        widest = (
            vector(a if a_along_k else a.transposed),
            vector(b if b_along_k else b.transposed),
        )
        kinds = ((1, 1),) if needs_wide_index(problem) else tuple(_tiles_by_vectors(dtype))
        return cls(a_along_k, b_along_k, next(x for x in kinds if x[0] <= widest[0] and x[1] <= widest[1]))


def _runs_along_k(matrix: Matrix) -> bool:
    """Of a matrix whose columns are K's."""
    return matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)


def _tiles_by_vectors(dtype: torch.dtype) -> dict[tuple[int, int], tuple[str, ...]]:
    """The tiles that there are for each pair of vectors, the longest of which come first."""
    if dtype == torch.float32:
        return _FLOAT32_TILES
    return _TILES_OF_8_BYTES if dtype.itemsize == 8 else _SMALL_TILES


def vector(matrix: Matrix) -> int:
    """The elements of the longest access along rows that never straddles an edge or an alignment. No kernel has longer
    ones than 16 bytes of its arithmetic's type."""
    if matrix.column_stride != 1:
        return 1
    size = matrix.dtype.itemsize
    common = math.gcd(matrix.columns, matrix.row_stride, *matrix.batch_strides, ALIGNMENT // size)
    return min(common, max(matrix.alignment // size, 1))


def out_vector(problem: Problem) -> int:
    """The elements of an output that are stored at once."""
    return min(vector(problem.out), _TYPES[problem.a.dtype].vector)


def needs_wide_index(problem: Problem) -> bool:
    """Whether a size, or a step inside of a tile, does not fit an int. Addresses always have 64 bits."""
    strides = (stride for matrix in (problem.a, problem.b) for stride in (matrix.row_stride, matrix.column_stride))
    sizes = (problem.m, problem.n, problem.k)
    return max(*sizes, max(strides) * _LARGEST_EXTENT) > _INT_MAX - _LARGEST_EXTENT


def tiles(dtype: torch.dtype) -> tuple[Tile, ...]:
    """Those of the arithmetic of a type."""
    return TILES[_TYPES[dtype].accumulator_bytes]


def unsuited(tile: Tile, problem: Problem, reads: Reads) -> str | None:
    """Why there is no kernel with this tile that reads the operands of a problem in this way."""
    dtype = problem.a.dtype
    if needs_wide_index(problem) and not tile.wide_index:
        return "has no registers for the 64-bit steps that these sizes or strides need"
    if str(tile) in _tiles_by_vectors(dtype)[reads.vectors]:
        return None
    kind = "operands with these strides" if dtype == torch.float32 else "types other than float32"
    return f"is slower than other tiles for {kind}"


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    for dtype, a_along_k, b_along_k in itertools.product(_TYPES, (True, False), (True, False)):
        for vectors, names in _tiles_by_vectors(dtype).items():
            reads = Reads(a_along_k, b_along_k, vectors)
            offered = (tile for tile in tiles(dtype) if str(tile) in names)
            for tile, has_epilogue in itertools.product(offered, _epilogues(dtype, reads)):
                yield kernel(dtype, tile, reads, has_epilogue)


def _epilogues(dtype: torch.dtype, reads: Reads) -> tuple[bool, ...]:
    """Which kernels there are: without and with one, or only with one, which need not do anything."""
    if not dtype.is_floating_point:
        return (False,)
    is_plain = dtype.itemsize >= 4 and reads.vectors == (_TYPES[dtype].vector,) * 2
    return (False, True) if is_plain else (True,)


def kernel_of(problem: Problem, tile: Tile, reads: Reads) -> Kernel:
    """The kernel that does a problem."""
    has_epilogue = problem.epilogue is not None
    offered = _epilogues(problem.a.dtype, reads)
    return kernel(problem.a.dtype, tile, reads, has_epilogue if has_epilogue in offered else offered[0])


@cache
def kernel(dtype: torch.dtype, tile: Tile, reads: Reads, has_epilogue: bool, *, may_add: bool = False) -> Kernel:
    """The kernel of these constants. `may_add`: it can be told to add to what the output has."""
    kind = _TYPES[dtype]
    counts_wide = tile.wide_index and reads.vectors == (1, 1)
    # Steps of 64 bits along both operands take a few registers more than three blocks of float32 leave.
    needs_registers = counts_wide and reads.a_along_k and reads.b_along_k and dtype == torch.float32
    # Vectors along K are scattered down the rows: the padding puts those rows in different banks.
    a_pitch = tile.m + 4 if reads.a_along_k else tile.m
    b_pitch = tile.n + 4 if reads.b_along_k else tile.n
    constants = Constants(
        Element=kind.element,
        WideOutput=kind.wide_output,
        Accumulator=kind.accumulator,
        Index="long long" if counts_wide else "int",
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        thread_m=tile.thread_m,
        thread_n=tile.thread_n,
        blocks_per_sm=tile.blocks_per_sm - needs_registers,
        a_along_k=reads.a_along_k,
        a_vector=reads.vectors[0],
        a_pitch=a_pitch,
        b_along_k=reads.b_along_k,
        b_vector=reads.vectors[1],
        b_pitch=b_pitch,
        may_add=may_add,
        epilogue=EpilogueConstants(any=has_epilogue),
    )
    return Kernel.of(
        "simt",
        "kernels/simt/simt.cu",
        constants,
        BLANK_PARAMETERS,
        threads=tile.threads,
        shared_bytes=2 * tile.k * (a_pitch + b_pitch) * kind.accumulator_bytes,
    )
