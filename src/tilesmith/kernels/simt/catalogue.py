"""The kernels of simt.cu: which there are, and which of them a product takes.

A kernel is one for a type, a tile and a way to read each operand. To have few of them,

- operands are read in vectors of 16 bytes of the arithmetic's type or by single elements, and only float32 has what is
  between;
- a kernel of floats takes any epilogue, and none. Only float32 that is read in the longest vectors has kernels without
  one; with an epilogue it is read in shorter vectors;
- an A that is read across K and a B along it are multiplied as a transpose, whose results are stored one by one. Only
  the kernels without an epilogue read them as they are.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

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
_UNROLLED_BYTES: Final = 32  # along K, of the arithmetic's type


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
        Tile(64, 64, 16, 8, 4, blocks_per_sm=4, wide_index=True),
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

# How many elements of A and of B are read at once.
Vectors: TypeAlias = tuple[int, int]
_PLAIN_FLOAT32: Final[Vectors] = (4, 4)
_SINGLE: Final[Vectors] = (1, 1)

# The tiles of float32, by the vectors that operands are read in, the longest first. Where one operand is read by single
# elements, tiles that are not there for the vectors of the other read both so. By the cost model, all tiles for all
# vectors would save 0.1%.
_FLOAT32_TILES: Final[dict[Vectors, tuple[str, ...]]] = {
    _PLAIN_FLOAT32: ("128x256x16", "128x128x8", "64x128x8", "64x64x16", "32x32x32"),
    (2, 2): ("128x256x16", "64x128x8", "64x64x16", "32x32x32"),
    (4, 1): ("64x64x16", "32x32x32"),
    (1, 4): ("64x64x16", "32x32x32"),
    _SINGLE: ("128x256x8", "64x128x8", "64x64x16", "32x32x32"),
}
# Of types that are converted, and of integers: larger ones are slower, and with vectors 64x128x8 is no faster
# (docs/notes/2026-11-simt.md).
_SMALL_TILES: Final[dict[Vectors, tuple[str, ...]]] = {
    (4, 4): ("64x64x16", "32x32x32"),
    _SINGLE: ("64x64x16", "32x32x32"),
}
_TILES_OF_8_BYTES: Final = dict.fromkeys(((2, 2), _SINGLE), tuple(str(tile) for tile in TILES[8]))


@dataclass(frozen=True, slots=True)
class Reads:
    """How both operands are read: in vectors of so many elements, along K or across it."""

    a_along_k: bool
    b_along_k: bool
    vectors: Vectors

    @classmethod
    def of(cls, problem: Problem, tile: Tile) -> "Reads":
        """How a tile reads the operands of a problem."""
        suited = _suited_vectors(problem)
        vectors = next((x for x in suited if tile in _tiles_by_vectors(problem.a.dtype)[x]), suited[0])
        return cls(_runs_along_k(problem.a), _runs_along_k(problem.b.transposed), vectors)


def oriented(problem: Problem) -> Problem:
    """The product or its transpose: that whose results are stored in vectors, if there are kernels that read it."""
    p = problem.stored_by_rows
    is_across_and_along = not _runs_along_k(p.a) and _runs_along_k(p.b.transposed)
    if is_across_and_along and not _is_plain(p.a.dtype, _suited_vectors(p)[0]):
        return problem.transposed if p is problem else problem
    return p


def _runs_along_k(matrix: Matrix) -> bool:
    """Of a matrix whose columns are K's."""
    return matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)


@cache
def _tiles_by_vectors(dtype: torch.dtype) -> dict[Vectors, tuple[Tile, ...]]:
    """The tiles that there are for each pair of vectors, the longest of which come first."""
    names = _TILES_OF_8_BYTES if dtype.itemsize == 8 else _SMALL_TILES
    if dtype == torch.float32:
        names = _FLOAT32_TILES
    return {vectors: tuple(tile for tile in tiles(dtype) if str(tile) in names[vectors]) for vectors in names}


def _suited_vectors(problem: Problem) -> tuple[Vectors, ...]:
    """The longest ones that both operands can be read in; and single elements, if one of them has no longer ones."""
    dtype = problem.a.dtype
    if needs_wide_index(problem):
        return (_SINGLE,)
    a, b = _widest_vector(problem.a), _widest_vector(problem.b.transposed)
    has_epilogue = problem.epilogue is not None
    longest = next(
        x for x in _tiles_by_vectors(dtype) if x[0] <= a and x[1] <= b and not (has_epilogue and _is_plain(dtype, x))
    )
    return (longest, _SINGLE) if 1 in longest and longest != _SINGLE else (longest,)


def _widest_vector(matrix: Matrix) -> int:
    """Of a matrix whose columns are K's, along them or across."""
    return vector(matrix if _runs_along_k(matrix) else matrix.transposed)


def _is_plain(dtype: torch.dtype, vectors: Vectors) -> bool:
    """Whether kernels of this kind have no epilogue, though the type may have one."""
    return dtype == torch.float32 and vectors == _PLAIN_FLOAT32


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


def unrolled_k(dtype: torch.dtype, tile: Tile) -> int:
    """The steps of K that a kernel does at once. What is not fast anyway has fewer: it compiles in half the time, and
    ends sooner after the end of K."""
    if dtype in (torch.float32, torch.float64):
        return tile.k
    return min(tile.k, _UNROLLED_BYTES // _TYPES[dtype].accumulator_bytes)


@cache
def wide_index_tile(dtype: torch.dtype) -> Tile:
    """The largest one that counts with 64 bits: it does wherever it reads single elements."""
    return next(tile for tile in _tiles_by_vectors(dtype)[_SINGLE] if tile.wide_index)


def offered(problem: Problem) -> dict[Tile, Reads]:
    """The tiles that there are kernels with for a problem, and how they read its operands."""
    dtype = problem.a.dtype
    along_k = _runs_along_k(problem.a), _runs_along_k(problem.b.transposed)
    if needs_wide_index(problem):
        return {wide_index_tile(dtype): Reads(*along_k, _SINGLE)}
    found: dict[Tile, Reads] = {}
    for vectors in _suited_vectors(problem):
        reads = Reads(*along_k, vectors)
        for tile in _tiles_by_vectors(dtype)[vectors]:
            found.setdefault(tile, reads)
    return found


def unsuited(problem: Problem) -> Iterator[tuple[Tile, str]]:
    """The other tiles, and why there is no kernel with them."""
    dtype, found = problem.a.dtype, offered(problem)
    reason = (
        f"is slower than other tiles for {'operands with these strides' if dtype == torch.float32 else 'this type'}"
    )
    if needs_wide_index(problem):
        reason = "has no registers for the 64-bit steps that these sizes or strides need"
    return ((tile, reason) for tile in tiles(dtype) if tile not in found)


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    for dtype, a_along_k, b_along_k in itertools.product(_TYPES, (True, False), (True, False)):
        for vectors, suited in _tiles_by_vectors(dtype).items():
            if a_along_k or not b_along_k or _is_plain(dtype, vectors):
                yield from (kernel(dtype, tile, Reads(a_along_k, b_along_k, vectors)) for tile in suited)


@cache
def kernel(dtype: torch.dtype, tile: Tile, reads: Reads, *, may_add: bool = False) -> Kernel:
    """The kernel of these constants. `may_add`: it has no epilogue, but can be told to add to what the output has."""
    kind = _TYPES[dtype]
    has_epilogue = dtype.is_floating_point and not _is_plain(dtype, reads.vectors) and not may_add
    counts_wide = reads.vectors == _SINGLE and tile == wide_index_tile(dtype)
    # Steps of 64 bits along both operands take a few registers more than so many blocks leave.
    needs_registers = counts_wide and reads.a_along_k and reads.b_along_k and kind.accumulator_bytes == 4
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
        unrolled_k=unrolled_k(dtype, tile),
        thread_m=tile.thread_m,
        thread_n=tile.thread_n,
        blocks_per_sm=tile.blocks_per_sm - needs_registers,
        a_along_k=reads.a_along_k,
        a_vector=reads.vectors[0],
        a_pitch=a_pitch,
        b_along_k=reads.b_along_k,
        b_vector=reads.vectors[1],
        b_pitch=b_pitch,
        unrolls_stores=_is_plain(dtype, reads.vectors),
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
