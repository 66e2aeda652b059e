"""The tiles of fp64_mma, and what they are expected to cost."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.operand import aligned_lines

MMA: Final = (16, 8, 16)  # m, n and k of the instruction


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


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `fp64.fp64_mma` of a GPU's rates: of an SM, unless it says otherwise."""

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


def rates_of(device: Device) -> Rates:
    return rates.section(device, "fp64.fp64_mma", Rates)


def cycles(problem: Problem, device: Device, tile: Tile, r: Rates, a: Lines, b: Lines) -> float:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly."""
    m, n, sm_count = tile.m, tile.n, device.sm_count
    blocks = math.ceil(problem.m / m) * math.ceil(problem.n / n) * problem.batches
    on_an_sm = math.ceil(blocks / sm_count)
    depth = math.ceil(problem.k / MMA[2]) * MMA[2]

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
    has_residual = problem.epilogue is not None and problem.epilogue.residual is not None
    block = r.block_clocks + (r.residual_clocks * m * n / tile.threads if has_residual else 0.0)
    working = math.ceil(on_an_sm / resident) * block + on_an_sm * work
    return r.start_clocks + max(working, _moved_bytes(problem) / r.memory_bytes_per_clock)


def _moved_bytes(problem: Problem) -> int:
    """Of the operands and the output, each once."""
    p = problem
    return 4 * p.batches * (p.m * p.n + (p.m + p.n) * p.k)


def min_cycles(problem: Problem, device: Device) -> float:
    """What the multiplications alone take, if no SM ever waits, or memory."""
    r, p = rates_of(device), problem
    multiplying = p.m * p.n * p.k * p.batches / (r.multiply_adds_per_clock * device.sm_count)
    return r.start_clocks + max(multiplying, _moved_bytes(p) / r.memory_bytes_per_clock)
