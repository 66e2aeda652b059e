"""The tiles of mma.cu, and what they are expected to cost."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tilesmith.core.device import Device
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.operand import aligned_lines, round_up

MMA: Final = (16, 8, 16)  # m, n and k of the instruction
_MIN_PART_TILES: Final = 2  # along K: the first ones of a part wait for memory
_MAX_SPLIT_K: Final = 64


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

    @property
    def k_round(self) -> int:
        """Of K that all warps multiply at once."""
        return MMA[2] * self.warps_k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# A warp's own tile is 32 x 32 at most.
TILES_OF_DOUBLES: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 32, warps_m=2, warps_n=2, warps_k=1, stages=3, blocks_per_sm=3, fewer_if_scalar=1),
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


class Cut(NamedTuple):
    """A tile, and how many parts K is cut into."""

    tile: Tile
    split_k: int = 1

    def part_k(self, k: int) -> int:
        """K of a part. The last one may have less."""
        return round_up(math.ceil(k / self.split_k), self.tile.k_round)

    def __str__(self) -> str:
        return f"{self.tile} split_k {self.split_k}" if self.split_k > 1 else str(self.tile)


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `mma.fp64` or `mma.tf32` of a GPU's rates: of an SM, unless it says otherwise."""

    start_clocks: float  # of the launch, to the first values and from the last
    block_clocks: float  # of a block, also where another one went before
    multiply_adds_per_clock: float
    converted_values_per_clock: float
    load_bytes_per_clock: float  # from L2, when all SMs ask
    few_blocks_load_bytes_per_clock: float  # when few do: latency
    scalar_load_share: float  # what is left of either where operands are copied a value at a time
    one_block_share: float  # of an SM, that one block reaches
    store_clocks: float  # of a result
    residual_clocks: float  # of a value of a residual that a thread reads
    memory_bytes_per_clock: float  # of the whole device
    reduce_clocks: float  # of the launch that adds the parts of K, apart from what it reads
    reduce_bytes_per_clock: float  # that are written and read: the sums of the parts


class Lines(NamedTuple):
    """How an operand is copied: along which direction, and whether 16 bytes at a time."""

    along_k: bool
    aligned: bool

    @classmethod
    def of(cls, matrix: Matrix) -> "Lines":
        """For a matrix whose columns run along K."""
        along_k = matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)
        return cls(along_k, aligned_lines(matrix if along_k else matrix.transposed))


def blocks_per_sm(tile: Tile, a: Lines, b: Lines) -> int:
    return tile.blocks_per_sm if a.aligned and b.aligned else tile.blocks_per_sm - tile.fewer_if_scalar


def cuts(problem: Problem, device: Device, tile: Tile) -> Iterator[Cut]:
    """K whole, and in as many parts as give each SM one block, two, ... all that it holds."""
    yield Cut(tile)
    blocks = _tiles(problem, tile)
    if 2 * blocks > device.sm_count * tile.blocks_per_sm or problem.k < 2 * _MIN_PART_TILES * tile.k:
        return
    most = min(_MAX_SPLIT_K, problem.k // (_MIN_PART_TILES * tile.k))
    found = {1}
    for on_an_sm in range(1, tile.blocks_per_sm + 1):
        part_k = Cut(tile, min(most, max(1, device.sm_count * on_an_sm // blocks))).part_k(problem.k)
        split_k = math.ceil(problem.k / part_k)  # as many as are not empty
        if split_k not in found:
            found.add(split_k)
            yield Cut(tile, split_k)


def _tiles(problem: Problem, tile: Tile) -> int:
    return math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batches


def cost(problem: Problem, device: Device, cut: Cut, r: Rates, a: Lines, b: Lines) -> tuple[float, float]:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly; and those of the launch that adds
    the parts of K."""
    tile, split_k = cut
    m, n, sm_count = tile.m, tile.n, device.sm_count
    blocks = _tiles(problem, tile) * split_k
    on_an_sm = math.ceil(blocks / sm_count)
    depth = math.ceil(problem.k / MMA[2]) * MMA[2] if split_k == 1 else cut.part_k(problem.k)

    resident = blocks_per_sm(tile, a, b)
    scalar = (not a.aligned) + (not b.aligned)
    busy = min(blocks / sm_count, 1.0)
    load_rate = r.load_bytes_per_clock * busy + r.few_blocks_load_bytes_per_clock * (1 - busy)
    load_rate *= 1 - (1 - r.scalar_load_share) * scalar / 2
    multiply = m * n / r.multiply_adds_per_clock
    convert = (m * tile.warps_n + n * tile.warps_m) / r.converted_values_per_clock
    load = (m + n) * 4 / load_rate
    share = 1.0 if min(on_an_sm, resident) > 1 else r.one_block_share
    work = depth * max(multiply / share, convert / share, load) + r.store_clocks * m * n
    has_residual = problem.epilogue is not None and problem.epilogue.residual is not None and split_k == 1
    block = r.block_clocks + (r.residual_clocks * m * n / tile.threads if has_residual else 0.0)
    working = math.ceil(on_an_sm / resident) * block + on_an_sm * work
    product = r.start_clocks + max(working, _moved_bytes(problem) / r.memory_bytes_per_clock)
    if split_k == 1:
        return product, 0.0
    partial_bytes = 8 * split_k * problem.m * problem.n * problem.batches
    return product, r.reduce_clocks + partial_bytes / r.reduce_bytes_per_clock


def _moved_bytes(problem: Problem) -> int:
    """Of the operands and the output, each once."""
    p = problem
    return 4 * p.batches * (p.m * p.n + (p.m + p.n) * p.k)


def min_cycles(problem: Problem, device: Device, r: Rates) -> float:
    """What the multiplications alone take, if no SM ever waits, or memory."""
    p = problem
    multiplying = p.m * p.n * p.k * p.batches / (r.multiply_adds_per_clock * device.sm_count)
    return r.start_clocks + max(multiplying, _moved_bytes(p) / r.memory_bytes_per_clock)
