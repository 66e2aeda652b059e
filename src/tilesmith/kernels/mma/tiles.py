"""The tiles of mma.cu, mma_large.cu and mma_fp32.cu."""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tilesmith.core.params import TILE_K
from tilesmith.core.problem import ALIGNMENT
from tilesmith.kernels.mma.operands import copy_widths
from tilesmith.kernels.operand import round_up

MMA: Final = (16, 8, 16)  # m, n and k of the instruction
TURING_MMA_K: Final = 8  # and its k, for float16


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
    by_matrices: bool = False  # ldmatrix reads them, of lines that are aligned: mma_large.cu and mma_fp32.cu
    raster_rows: int = 1  # of tiles, that blocks which run at the same time have
    on_turing: bool = False  # which has no copies that threads do not wait for, and a shorter instruction

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    def shared_bytes(self, itemsize: int, terms: int = 1) -> int:
        """`itemsize`: of the operands; `terms`: whose sum each of them is."""
        return self.stages * self.k * (self.m + self.n) * itemsize * terms

    @property
    def k_round(self) -> int:
        """What parts of K are multiples of."""
        return TILE_K if self.by_matrices else MMA[2] * self.warps_k

    def vector(self, itemsize: int) -> int:
        """Results that are stored at once where lines are aligned."""
        return ALIGNMENT // itemsize if self.by_matrices else self.n // self.warps_n // MMA[1]

    def copy_widths(self, itemsize: int) -> tuple[tuple[int, int], ...]:
        """The bytes of a copy of A and of B that its kernels have."""
        return ((ALIGNMENT, ALIGNMENT),) if self.by_matrices else copy_widths(itemsize)

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
# Of operands that are doubles themselves. Some have warps of 32 x 64: these read less of shared memory for a product.
TILES_OF_FLOAT64: Final[tuple[Tile, ...]] = (
    Tile(64, 128, 16, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=2, raster_rows=8),
    Tile(128, 128, 16, warps_m=4, warps_n=2, warps_k=1, stages=4, blocks_per_sm=1, raster_rows=8),
    Tile(64, 64, 16, warps_m=2, warps_n=2, warps_k=1, stages=4, blocks_per_sm=2, raster_rows=8),
    Tile(32, 64, 32, warps_m=1, warps_n=2, warps_k=2, stages=3, blocks_per_sm=2),
    Tile(32, 32, 32, warps_m=2, warps_n=2, warps_k=2, stages=4, blocks_per_sm=2),
    Tile(16, 32, 64, warps_m=1, warps_n=2, warps_k=4, stages=3, blocks_per_sm=2),
    Tile(16, 16, 64, warps_m=1, warps_n=1, warps_k=4, stages=4, blocks_per_sm=3),
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


# A warp's own tile is 64 x 64.
LARGE_TILES_OF_HALVES: Final[tuple[Tile, ...]] = (
    Tile(128, 256, 32, warps_m=2, warps_n=4, warps_k=1, stages=4, blocks_per_sm=1, by_matrices=True, raster_rows=8),
    Tile(128, 128, 32, warps_m=2, warps_n=2, warps_k=1, stages=4, blocks_per_sm=2, by_matrices=True, raster_rows=8),
)
# Of float16 on Turing, whose SM has 64 KiB of shared memory for all of its blocks.
TILES_ON_TURING: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=2, blocks_per_sm=4, on_turing=True),
    Tile(32, 32, 64, warps_m=2, warps_n=2, warps_k=2, stages=2, blocks_per_sm=2, on_turing=True),
    Tile(16, 32, 128, warps_m=1, warps_n=2, warps_k=4, stages=2, blocks_per_sm=2, on_turing=True),
)
LARGE_TILES_ON_TURING: Final[tuple[Tile, ...]] = tuple(
    replace(tile, stages=2, on_turing=True) for tile in LARGE_TILES_OF_HALVES
)
# Of pairs of 8-bit integers.
TILES_OF_PAIRS: Final[tuple[Tile, ...]] = (
    *LARGE_TILES_OF_HALVES,
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=4, blocks_per_sm=4, by_matrices=True, raster_rows=16),
)
# It has two sums of everything: one that rounds, and one that the tensor cores make.
TILES_OF_TERMS: Final[tuple[Tile, ...]] = (
    Tile(64, 128, 32, warps_m=1, warps_n=4, warps_k=1, stages=3, blocks_per_sm=2, by_matrices=True, raster_rows=16),
    Tile(128, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=2, by_matrices=True, raster_rows=8),
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=3, by_matrices=True, raster_rows=16),
)
# Of the terms of values of any size, which are three.
FULL_RANGE_TILE: Final = Tile(
    64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=2, blocks_per_sm=2, by_matrices=True, raster_rows=16
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
