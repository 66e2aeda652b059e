"""The ways to cut the work of a product that may be worth it."""

import itertools
import math
from collections.abc import Iterator
from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper.layout import MAX_PROMOTED_TILE_N, WGMMA_M, Configuration, schemes_of

# Rows are 64 for each consumer.
FLOAT32_TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (256, 224, 192, 160, 128, 96, 64, 32)),
    *((64, n) for n in (256, 192, 128, 96, 64, 32, 16, 8)),
)
# Of 16-bit operands. The more sizes there are, the less of the last tiles is empty, and the fuller is the last round.
TILES: Final[tuple[tuple[int, int], ...]] = (
    *((192, n) for n in (176, 160, 128)),
    *FLOAT32_TILES,
)
_MAX_RS_TILE_N: Final = 128  # where there are two sets of sums and terms in registers
_MAX_TIMES_SPLIT: Final = 4  # columns of tiles, for each of which A is split again
# Where there are two sets of sums.
PROMOTED_TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (MAX_PROMOTED_TILE_N, 176, 160, 144, 128, 112, 96, 64, 32)),
    *((64, n) for n in (MAX_PROMOTED_TILE_N, 128, 96, 64, 32, 16, 8)),
)
MIN_TILE: Final = (64, 8)
_MIN_ATOM_COLUMNS: Final = 16  # columns of a tile that any B can have
_MAX_SWAPPED_ROWS: Final = 256  # up to these the transposed product is considered
_MIN_SPLIT_STEPS: Final = 4  # steps along K that a split is worth
MAX_SPLIT_K: Final = 128
_TILE_OF_TORCH: Final = 128 * 256  # elements of the output that keep one SM busy
_MIN_CLUSTER_STEPS: Final = 4  # steps along K that are worth waiting for a neighbour


def configurations(problem: Problem, device: Device) -> Iterator[Configuration]:
    """Every way to cut the work that may be worth it."""
    k_steps = math.ceil(problem.k / TILE_K)
    for swap_ab in (False, True) if problem.m < problem.n and problem.m <= _MAX_SWAPPED_ROWS else (False,):
        m, n = (problem.n, problem.m) if swap_ab else (problem.m, problem.n)
        for tile_m, tile_n in _tiles(problem):
            if tile_n >= 2 * max(n, _MIN_ATOM_COLUMNS) or tile_m - WGMMA_M >= m:
                continue  # at least half of it would be empty, or a consumer idle
            tiles_n = math.ceil(n / tile_n)
            tiles = math.ceil(m / tile_m) * tiles_n * problem.batches
            is_rs_possible = may_be_rs(problem) and tile_n <= _MAX_RS_TILE_N and tiles_n <= _MAX_TIMES_SPLIT
            for split_k in _split_ks(tiles, k_steps, device, _min_split_k(problem, device)):
                clusters = (1, 2) if m > tile_m and k_steps >= split_k * _MIN_CLUSTER_STEPS else (1,)
                for cluster, rs in itertools.product(clusters, (False, True) if is_rs_possible else (False,)):
                    yield Configuration(tile_m, tile_n, cluster, split_k, swap_ab, rs)


def _tiles(problem: Problem) -> tuple[tuple[int, int], ...]:
    if _promotes(problem):
        return PROMOTED_TILES
    return TILES if schemes_of(problem) is None else FLOAT32_TILES


def may_be_rs(problem: Problem) -> bool:
    is_packed, is_mixed = problem.a.packed or problem.b.packed, problem.a.dtype != problem.b.dtype
    return _promotes(problem) and not is_packed and not is_mixed


def _promotes(problem: Problem) -> bool:
    schemes = schemes_of(problem)
    return schemes is not None and schemes.ordinary.terms > 1 and problem.k > TILE_K


def _min_split_k(problem: Problem, device: Device) -> int:
    """The least split_k. Of float32 in one term, tensor cores cut off what they add, and the longer a sum, the more.
    torch splits the sums of small outputs, and is to have no less error."""
    schemes = schemes_of(problem)
    if schemes is None or schemes.ordinary.terms > 1:
        return 1
    tiles = problem.m * problem.n * problem.batches / _TILE_OF_TORCH
    return max(1, min(problem.k // (_MIN_SPLIT_STEPS * TILE_K), int(device.sm_count / tiles)))


def _split_ks(tiles: int, k_steps: int, device: Device, least: int) -> Iterator[int]:
    """One, or as few as there may be, and what fills the SMs once or twice."""
    most = min(k_steps // _MIN_SPLIT_STEPS, MAX_SPLIT_K)
    least = min(least, max(most, 1))
    once, twice = (min(rounds * device.sm_count // tiles, most) for rounds in (1, 2))
    yield least
    if once > least:
        yield once
    if twice > max(once, 2, least):
        yield twice
