"""The ways to cut the work of a product that may be worth it."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper.layout import Configuration, schemes_of
from tilesmith.kernels.hopper.traits import MAX_PROMOTED_TILE_N, WGMMA_M, has_short_sums

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
_MIN_RS_STEPS: Final = 5  # along K: in shorter sums the split of the first step is not hidden
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


Row = TypeVar("Row", bound=tuple[Any, ...])  # of a table of tiles: the rows and columns of one, and more


def configurations(problem: Problem, device: Device, must_swap: bool | None = None) -> Iterator[Configuration]:
    """Every way to cut the work that may be worth it. `must_swap`: that swap_ab must be so; None if either will do."""
    for swap_ab in orders(problem, must_swap):
        for (tile_m, tile_n), split_k, _, max_cluster, may_be_rs in ways(problem, device, swap_ab, tiles_of(problem)):
            for cluster in range(1, max_cluster + 1):
                yield Configuration(tile_m, tile_n, cluster, split_k, swap_ab)
                if may_be_rs:
                    yield Configuration(tile_m, tile_n, cluster, split_k, swap_ab, rs=True)


def orders(problem: Problem, must_swap: bool | None = None) -> tuple[bool, ...]:
    """Whether the product is computed transposed: as it must be; or never, or both ways are worth a look."""
    if must_swap is not None:
        return (must_swap,)
    return (False, True) if problem.m < problem.n and problem.m <= _MAX_SWAPPED_ROWS else (False,)


def ways(
    problem: Problem, device: Device, swap_ab: bool, tiles: Iterable[Row]
) -> Iterator[tuple[Row, int, int, int, bool]]:
    """The parts of K that may be worth it for each of the tiles; with them the tiles of all matrices and parts, the
    largest cluster, and whether A may be split in registers."""
    m, n = (problem.n, problem.m) if swap_ab else (problem.m, problem.n)
    k_steps, batches = -(-problem.k // TILE_K), problem.batches
    may_split_a = k_steps >= _MIN_RS_STEPS and may_be_rs(problem)
    most = min(k_steps // _MIN_SPLIT_STEPS, MAX_SPLIT_K)
    least_of_long_sums = min(min_sums(problem, device), max(most, 1))
    sm_count, widest = device.sm_count, 2 * max(n, _MIN_ATOM_COLUMNS)
    for tile in tiles:
        tile_m, tile_n = tile[0], tile[1]
        if tile_n >= widest or tile_m - WGMMA_M >= m:
            continue  # at least half of it would be empty, or a consumer idle
        tiles_n = -(-n // tile_n)
        count = -(-m // tile_m) * tiles_n * batches
        may_be_split = may_split_a and tile_n <= _MAX_RS_TILE_N and tiles_n <= _MAX_TIMES_SPLIT
        least = 1 if has_short_sums(tile_m, tile_n) else least_of_long_sums
        for split_k in (least,) if count > 2 * sm_count else _split_ks(count, sm_count, least, most):
            is_shared = m > tile_m and k_steps >= split_k * _MIN_CLUSTER_STEPS
            yield tile, split_k, count * split_k, 2 if is_shared else 1, may_be_split


def tiles_of(problem: Problem) -> tuple[tuple[int, int], ...]:
    """The tiles that a product may have, if there are kernels with them."""
    if _promotes(problem):
        return PROMOTED_TILES
    return TILES if schemes_of(problem) is None else FLOAT32_TILES


def may_be_rs(problem: Problem) -> bool:
    is_packed, is_mixed = problem.a.packed or problem.b.packed, problem.a.dtype != problem.b.dtype
    return _promotes(problem) and not is_packed and not is_mixed and len(problem.batch) <= 1


def _promotes(problem: Problem) -> bool:
    schemes = schemes_of(problem)
    return schemes is not None and schemes.ordinary.terms > 1 and problem.k > TILE_K


def min_sums(problem: Problem, device: Device) -> int:
    """The fewest sums that K is cut into. Of float32 in one term, tensor cores cut off what they add, and the longer a
    sum, the more. torch splits the sums of small outputs, and is to have no less error."""
    schemes = schemes_of(problem)
    if schemes is None:  # 16 bits; what stands for TF32 there is float16 with a float32 output, see tf32.py
        is_one_term = problem.accuracy == "tf32" and (problem.a.dtype, problem.out.dtype) == (
            torch.float16,
            torch.float32,
        )
    else:
        is_one_term = schemes.ordinary.terms == 1
    if not is_one_term:
        return 1
    tiles = problem.m * problem.n * problem.batches / _TILE_OF_TORCH
    return max(1, min(problem.k // (_MIN_SPLIT_STEPS * TILE_K), int(device.sm_count / tiles)))


def _split_ks(tiles: int, sm_count: int, least: int, most: int) -> tuple[int, ...]:
    """One, or as few as there may be, and what fills the SMs once or twice."""
    once, twice = min(sm_count // tiles, most), min(2 * sm_count // tiles, most)
    first = (least, once) if once > least else (least,)
    return (*first, twice) if twice > max(once, 2, least) else first
