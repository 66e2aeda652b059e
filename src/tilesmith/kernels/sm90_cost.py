"""What a configuration of the `sm90` family is expected to cost.

The constants were fitted to 992 timings of 78 products on an H200 (docs/measured.md): times are off by 11% (root mean
square), and the configuration with the least expected clocks took 1.0% more, on average, than the best one measured.
"""

import math
from dataclasses import dataclass
from typing import Final

from tilesmith.device import Device

# Tensor cores.
_CLOCKS_OF_A_COLUMN: Final = 0.5  # of a product of 64 x n x 16
_LEAST_WGMMA: Final = 15.0  # clocks
_SHARE_OF_TWO_CONSUMERS: Final = 0.975  # of the tensor cores' rate
_SHARE_OF_ONE_CONSUMER: Final = 0.74
_SHARE_OF_NARROW_PANELS: Final = 0.91  # of that, where a tile is not a multiple of 64 wide
_NARROWNESS: Final = 0.06  # how much a tile loses that is less than 256 wide
_ALONE: Final = 1.02  # clocks of a block without a cluster, relative to one in it
# A step of the pipeline.
_LEAST_STEP: Final = 118.0
_STEP: Final = 28.0
_L2_BYTES_PER_CLOCK: Final = 65.0  # that an SM gets when all of them ask; of a line of 128 bytes, read in two, half
# The end of a tile.
_TILE: Final = 1000.0
_STORE_BY_TMA: Final = 0.08  # clocks of an element
_STORE_BY_THREADS: Final = 0.45
_STORE_FLOAT32: Final = 0.33
_LAST_STORE: Final = 0.042  # no later tile hides it
# A launch.
_START: Final = 6800.0
_CLUSTER_START: Final = 2000.0
_MEMORY_START: Final = 8900.0
_TIMER: Final = 6000.0  # what the timings had of their own
_REALIGN: Final = 7760.0
_REDUCE: Final = 5140.0
# Memory, bytes a clock.
_READ: Final = 2380.0
_WRITE: Final = 4800.0  # most of it hides behind reading
_REALIGNED: Final = 2530.0  # read and written
_PARTIAL: Final = 2200.0
_REREAD: Final = 0.15  # of these bytes come from memory again
_STRIPES: Final = 0.06  # more reading where splits read stripes of B that are less than 256 wide
# How sharply the slower of arithmetic and memory decides.
_SHARPNESS: Final = 3.1


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one product, as it is cut."""

    tile_m: int
    tile_n: int
    cluster: int
    splits: int
    units: int  # tiles of all splits and matrices, those included that only fill a cluster
    steps: int  # of 64 along K, for one unit
    a_straddles: bool  # the lines of a tile straddle those of L2
    b_straddles: bool
    input_bytes: int
    reread_bytes: int  # of operands that several tiles read, each time after the first
    output_elements: int
    realigned_bytes: int
    stored_by_threads: bool
    reduced: bool


def cycles(work: Work, device: Device) -> float:
    """The clocks from the first launch to the end of the last."""
    blocks = device.sm_count // work.cluster * work.cluster
    rounds = -(-work.units // blocks)
    elements = work.tile_m * work.tile_n

    arithmetic = rounds * (work.steps * _step(work) + _end_of_tile(work))
    arithmetic += _LAST_STORE * elements + _START + (_CLUSTER_START if work.cluster > 1 else 0.0)

    reading = (work.input_bytes + _REREAD * work.reread_bytes) / _READ
    if work.splits > 1:
        reading *= 1 + _STRIPES * (1 - work.tile_n / 256)
    memory = reading + work.output_elements * 2 / _WRITE + _MEMORY_START

    total = math.pow(math.pow(arithmetic, _SHARPNESS) + math.pow(memory, _SHARPNESS), 1 / _SHARPNESS)
    if work.realigned_bytes:
        total += _REALIGN + 2 * work.realigned_bytes / _REALIGNED
    if work.reduced:
        total += _REDUCE + work.output_elements * work.splits * 4 / _PARTIAL
    return total - _TIMER


def _step(work: Work) -> float:
    consumers = work.tile_m // 64
    share = _SHARE_OF_TWO_CONSUMERS if consumers > 1 else _SHARE_OF_ONE_CONSUMER
    if work.tile_n > 64 and work.tile_n % 64:
        share *= _SHARE_OF_NARROW_PANELS
    multiply = 4 * consumers * max(work.tile_n * _CLOCKS_OF_A_COLUMN, _LEAST_WGMMA) / share
    multiply *= math.pow(256 / work.tile_n, _NARROWNESS)
    if work.cluster == 1:
        multiply *= _ALONE
    a_lines = work.tile_m * (1 + work.a_straddles)
    b_lines = work.tile_n / work.cluster * (1 + work.b_straddles)
    load = (a_lines + b_lines) * 128 / _L2_BYTES_PER_CLOCK
    return max(multiply, load, _LEAST_STEP) + _STEP


def _end_of_tile(work: Work) -> float:
    elements = work.tile_m * work.tile_n
    if work.reduced:
        return _STORE_FLOAT32 * elements
    return _TILE + (_STORE_BY_THREADS if work.stored_by_threads else _STORE_BY_TMA) * elements
