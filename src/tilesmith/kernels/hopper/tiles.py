"""The ways to cut the work of a product that may be worth it."""

import itertools
import math
from collections.abc import Iterator
from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper.layout import Configuration, schemes_of
from tilesmith.kernels.hopper.traits import MAX_PROMOTED_TILE_N, WGMMA_M

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


Cut = tuple[int, int, int, int, bool, bool]  # the fields of a Configuration


def configurations(problem: Problem, device: Device) -> Iterator[Configuration]:
    """Every way to cut the work that may be worth it."""
    return itertools.starmap(Configuration, cuts(problem, device))


def cuts(problem: Problem, device: Device) -> Iterator[Cut]:
    """The same as tuples, which are made in a fraction of the time."""
    k_steps, batches = math.ceil(problem.k / TILE_K), problem.batches
    least, may_split_a, tiles = _min_split_k(problem, device), may_be_rs(problem), _tiles(problem)
    for swap_ab in (False, True) if problem.m < problem.n and problem.m <= _MAX_SWAPPED_ROWS else (False,):
        m, n = (problem.n, problem.m) if swap_ab else (problem.m, problem.n)
        widest = 2 * max(n, _MIN_ATOM_COLUMNS)
        for tile_m, tile_n in tiles:
            if tile_n >= widest or tile_m - WGMMA_M >= m:
                continue  # at least half of it would be empty, or a consumer idle
            tiles_n = -(-n // tile_n)
            count = -(-m // tile_m) * tiles_n * batches
            is_rs_possible = may_split_a and tile_n <= _MAX_RS_TILE_N and tiles_n <= _MAX_TIMES_SPLIT
            for split_k in _split_ks(count, k_steps, device, least):
                for cluster in (1, 2) if m > tile_m and k_steps >= split_k * _MIN_CLUSTER_STEPS else (1,):
                    yield tile_m, tile_n, cluster, split_k, swap_ab, False
                    if is_rs_possible:
                        yield tile_m, tile_n, cluster, split_k, swap_ab, True


def _tiles(problem: Problem) -> tuple[tuple[int, int], ...]:
    if _promotes(problem):
        return PROMOTED_TILES
    return TILES if schemes_of(problem) is None else FLOAT32_TILES


def may_be_rs(problem: Problem) -> bool:
    is_packed, is_mixed = problem.a.packed or problem.b.packed, problem.a.dtype != problem.b.dtype
    is_plain = problem.epilogue is None and len(problem.batch) <= 1
    return _promotes(problem) and not is_packed and not is_mixed and is_plain


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


def _split_ks(tiles: int, k_steps: int, device: Device, least: int) -> tuple[int, ...]:
    """One, or as few as there may be, and what fills the SMs once or twice."""
    most = min(k_steps // _MIN_SPLIT_STEPS, MAX_SPLIT_K)
    least = min(least, max(most, 1))
    once, twice = min(device.sm_count // tiles, most), min(2 * device.sm_count // tiles, most)
    first = (least, once) if once > least else (least,)
    return (*first, twice) if twice > max(once, 2, least) else first
