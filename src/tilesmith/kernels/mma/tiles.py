"""The tiles of mma.cu, and how operands are copied into them."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels.operand import aligned_lines, round_up

MMA: Final = (16, 8, 16)  # m, n and k of the instruction
MAX_GROUP: Final = 4  # columns that a lane has side by side
_WORD: Final = 4  # bytes of the least copy that does not pass through registers


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

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    def shared_bytes(self, itemsize: int) -> int:
        """`itemsize`: of the operands."""
        return self.stages * self.k * (self.m + self.n) * itemsize

    @property
    def k_round(self) -> int:
        """Of K that all warps multiply at once."""
        return MMA[2] * self.warps_k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# A warp's own tile is 32 x 32 at most.
TILES_OF_DOUBLES: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=3),
    Tile(32, 64, 64, warps_m=2, warps_n=2, warps_k=2, stages=3, blocks_per_sm=2),
    Tile(32, 32, 64, warps_m=2, warps_n=2, warps_k=2, stages=4, blocks_per_sm=2),
    Tile(16, 32, 64, warps_m=1, warps_n=2, warps_k=4, stages=4, blocks_per_sm=2),
    Tile(16, 16, 128, warps_m=1, warps_n=1, warps_k=4, stages=3, blocks_per_sm=4),
)
TILES_OF_TF32: Final[tuple[Tile, ...]] = (  # smaller ones are no faster than of doubles
    Tile(128, 64, 32, warps_m=4, warps_n=2, warps_k=1, stages=3, blocks_per_sm=2),
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=3),
    Tile(32, 64, 64, warps_m=2, warps_n=2, warps_k=2, stages=3, blocks_per_sm=2),
)
TILES_OF_HALVES: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=4),
    Tile(128, 32, 32, warps_m=4, warps_n=1, warps_k=1, stages=3, blocks_per_sm=4),
    Tile(32, 64, 64, warps_m=2, warps_n=2, warps_k=2, stages=3, blocks_per_sm=2),
    Tile(32, 32, 64, warps_m=2, warps_n=2, warps_k=2, stages=4, blocks_per_sm=2),
    Tile(16, 32, 128, warps_m=1, warps_n=2, warps_k=4, stages=3, blocks_per_sm=2),
    Tile(16, 16, 128, warps_m=1, warps_n=1, warps_k=4, stages=3, blocks_per_sm=4),
)


class Cut(NamedTuple):
    """A tile, and how many parts K is cut into."""

    tile: Tile
    split_k: int = 1

    def part_k(self, k: int) -> int:
        """K of a part. The last one may have less."""
        return round_up(math.ceil(k / self.split_k), self.tile.k_round)

    def __str__(self) -> str:
        return f"{self.tile} split_k {self.split_k}" if self.split_k > 1 else str(self.tile)


class Lines(NamedTuple):
    """How an operand is copied: along which direction, and how many bytes at a time."""

    along_k: bool
    copy_bytes: int

    @property
    def is_aligned(self) -> bool:
        return self.copy_bytes == ALIGNMENT

    @classmethod
    def of(cls, matrix: Matrix) -> "Lines":
        """For a matrix whose columns run along K."""
        along_k = matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)
        lines, itemsize = matrix if along_k else matrix.transposed, matrix.dtype.itemsize
        widths = (ALIGNMENT, _WORD) if itemsize < _WORD else (ALIGNMENT,)
        return cls(along_k, next((width for width in widths if aligned_lines(lines, width)), itemsize))


def lines_of(problem: Problem) -> tuple[Lines, Lines]:
    """Those of A and B. A kernel that copies single 16-bit values of one does not copy pairs of the other."""
    a, b = Lines.of(problem.a), Lines.of(problem.b.transposed)
    widths = a.copy_bytes, b.copy_bytes
    if widths not in copy_widths(problem.a.dtype.itemsize):
        a, b = a._replace(copy_bytes=min(widths)), b._replace(copy_bytes=min(widths))
    return a, b


@cache
def copy_widths(itemsize: int) -> tuple[tuple[int, int], ...]:
    """The bytes of a copy of A and of B that kernels have, for operands of a type."""
    narrow = (itemsize,) if itemsize == _WORD else (_WORD, itemsize)
    mixed = [widths for each in narrow for widths in ((each, ALIGNMENT), (ALIGNMENT, each), (each, each))]
    return (ALIGNMENT, ALIGNMENT), *mixed
