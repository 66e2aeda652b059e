"""What a configuration of the `sm90` family is expected to cost.

The constants were fitted to timings on an H200 (docs/measured.md): 992 of 78 products of 16-bit operands, and 834 of
28 products of float32; those of raw configurations were set by hand to twelve timings, those of 16-bit results that
threads store and of residuals to twenty, and widths that are no multiple of 32 to some fifty. On 1,278 later timings of
26 products of either kind, by `tilesmith tune`, the configuration with the least expected clocks took 0.3% and 0.1%
more, on average, than the best one, and 2.7% at most; scripts/fit_costs.py, which fits them to such timings, found none
that choose better. On 53 products of 16-bit operands, most of them with sizes that are no multiples of 64, it took 3.1%
more, and 44% at most. Absolute times are off by 17% (root mean square): the clock depends on the product.
"""

import math
from dataclasses import dataclass
from typing import Final

from tilesmith.device import Device
from tilesmith.kernels.planes import products_of_planes
from tilesmith.plan import Cost


@dataclass(frozen=True, slots=True)
class _Rates:
    """Clocks, unless it says otherwise."""

    # Tensor cores.
    least_wgmma: float  # of a product of 64 x n x 16
    share_of_several_consumers: float  # of the tensor cores' rate
    share_of_one_consumer: float
    narrowness: float  # how much a tile loses that is less than 256 wide
    alone: float  # clocks of a block without a cluster, relative to one in it
    # A step of the pipeline.
    least_step: float
    step: float
    promotion: float  # of an element
    l2_bytes: float  # a clock that an SM gets when all of them ask; of a line of 128 bytes, read in two, half
    # The end of a tile.
    tile: float
    store_by_tma: float  # of an element
    store_by_threads: float
    store_by_one_consumer: float  # times that, of a block that has one: too few threads to wait for each other
    store_short_lines: float  # more, where a tile's width is not made of lines of 128 bytes, and no later tile hides it
    store_unevenly: float  # more by threads, where it is not
    hides_store: int  # steps of the next tile that hide a store by threads
    read_residual: float  # of an element
    store_partial: float
    last_store: float  # no later tile hides it
    # A launch.
    start: float
    cluster_start: float
    memory_start: float
    reduce: float
    # Memory, bytes a clock.
    read: float
    write: float  # most of it hides behind reading
    partial: float
    reread: float  # of these bytes come from memory again
    # How sharply the slower of arithmetic and memory decides.
    sharpness: float


_SINGLE: Final = _Rates(
    least_wgmma=15.0,
    share_of_several_consumers=0.975,
    share_of_one_consumer=0.74,
    narrowness=0.06,
    alone=1.02,
    least_step=118.0,
    step=28.0,
    promotion=0.0,
    l2_bytes=65.0,
    tile=1000.0,
    store_by_tma=0.08,
    store_by_threads=0.29,
    store_by_one_consumer=1.25,
    store_short_lines=0.045,
    store_unevenly=0.25,
    hides_store=32,
    read_residual=0.18,
    store_partial=0.33,
    last_store=0.042,
    start=6800.0,
    cluster_start=2000.0,
    memory_start=8900.0,
    reduce=5140.0,
    read=2380.0,
    write=4800.0,
    partial=2200.0,
    reread=0.15,
    sharpness=3.1,
)
_PLANES: Final = _Rates(
    least_wgmma=17.2,
    share_of_several_consumers=0.938,
    share_of_one_consumer=0.79,
    narrowness=0.031,
    alone=1.005,
    least_step=0.0,
    step=132.0,
    promotion=0.0039,
    l2_bytes=55.2,
    tile=1590.0,
    store_by_tma=0.091,
    store_by_threads=0.58,
    store_by_one_consumer=1.0,
    store_short_lines=0.0,
    store_unevenly=0.4,
    hides_store=1 << 30,
    read_residual=0.0,
    store_partial=0.21,
    last_store=0.19,
    start=5520.0,
    cluster_start=810.0,
    memory_start=0.0,
    reduce=7570.0,
    read=1626.0,
    write=4240.0,
    partial=1600.0,
    reread=0.107,
    sharpness=4.45,
)
_CLOCKS_OF_A_COLUMN: Final = 0.5  # of a product of 64 x n x 16
_SHARE_OF_NARROW_PANELS: Final = 0.91  # of the tensor cores' rate, where a tile's width is not made of 64 columns
_SHARE_OF_ODD_WIDTHS: Final = 0.965  # where columns of B are loaded and not used
_UNEVEN_RESIDUAL: Final = 1.5  # times as long to read, where a tile's width is not made of lines of 128 bytes
_STRIPES: Final = 0.06  # more reading where splits read stripes of B that are less than 256 wide
_TIMER: Final = 6000.0  # what the timings had of their own
_REALIGN: Final = 7760.0
_REALIGNED: Final = 2530.0  # bytes a clock, read and written
_SPLIT: Final = 15600.0
_SPLIT_BYTES: Final = 2320.0  # a clock, read and written
_IDLE_LAUNCHES: Final = 5300.0  # of the wide scheme, which as a rule has nothing to do
_FASTER_CLOCK: Final = 1.13  # of the CUDA cores, which do what the tensor cores do not: float32 counts theirs
# By consumers: of a step along K that they split themselves, and for each column of the tile.
_RAW_STEP: Final = {1: (1310.0, 5.7), 2: (1530.0, 12.9)}
_RAW_READ: Final = 2300.0  # bytes a clock
_PAIRS_IN_BATCHES: Final = 1.8  # more clocks of pairs of blocks where there are several matrices of planes


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one product, as it is cut."""

    tile_m: int
    tile_n: int
    cluster: int
    splits: int
    units: int  # tiles of all splits and matrices, those included that only fill a cluster
    steps: int  # of 64 along K, for one unit
    a_planes: int
    b_planes: int
    raw: bool  # A is split by those who multiply
    batches: int
    loaded_columns: int  # of B, for a tile
    a_straddles: bool  # the lines of a tile straddle those of L2
    b_straddles: bool
    input_bytes: int  # as the product reads them
    reread_bytes: int  # of operands that several tiles read, each time after the first
    output_elements: int
    realigned_bytes: int
    is_float32: bool  # the operands are planes
    split_bytes: int  # of those planes that are not packed
    stored_by_threads: bool
    line_columns: int  # of results, in 128 bytes
    has_residual: bool
    reduced: bool

    @property
    def planes(self) -> int:
        """The most that an operand has."""
        return max(self.a_planes, self.b_planes)

    @property
    def products(self) -> int:
        """Of planes that are not too small together."""
        return products_of_planes(self.a_planes, self.b_planes)


def cost(work: Work, device: Device) -> Cost:
    """The clocks from the first launch to the end of the last."""
    rates = _PLANES if work.planes > 1 else _SINGLE
    blocks = device.sm_count // work.cluster * work.cluster
    rounds = -(-work.units // blocks)
    elements = work.tile_m * work.tile_n

    arithmetic = rounds * (work.steps * _step(work, rates) + _end_of_tile(work, rates))
    if work.planes > 1 and work.cluster > 1 and work.batches > 1:
        arithmetic *= _PAIRS_IN_BATCHES
    arithmetic += rates.last_store * elements + rates.start + (rates.cluster_start if work.cluster > 1 else 0.0)

    read = _RAW_READ if work.raw else rates.read
    reading = (work.input_bytes + rates.reread * work.reread_bytes) / read
    if work.splits > 1:
        reading *= 1 + _STRIPES * (1 - work.tile_n / 256)
    memory = reading + work.output_elements * 2 * work.planes / rates.write + rates.memory_start

    sharpness = rates.sharpness
    preparation = 0.0
    if work.realigned_bytes:
        preparation = _REALIGN + 2 * work.realigned_bytes / _REALIGNED
    if work.split_bytes:
        preparation = split_clocks(work.split_bytes)
    return Cost(
        product=math.pow(math.pow(arithmetic, sharpness) + math.pow(memory, sharpness), 1 / sharpness),
        preparation=preparation,
        idle_launches=_IDLE_LAUNCHES if work.is_float32 else 0.0,
        reduction=rates.reduce + work.output_elements * work.splits * 4 / rates.partial if work.reduced else 0.0,
        scale=_FASTER_CLOCK if work.is_float32 else 1.0,
        # Of float32 it stays in: the timer counts in the times of the other family, too.
        timer=0.0 if work.is_float32 else _TIMER,
    )


def split_clocks(split_bytes: int) -> float:
    """Of the launch that makes planes of so many bytes."""
    return _SPLIT + 2 * split_bytes / _SPLIT_BYTES


def _step(work: Work, rates: _Rates) -> float:
    consumers = work.tile_m // 64
    if work.raw:
        split, column = _RAW_STEP[consumers]
        return split + column * work.tile_n
    products = 4 * work.products
    share = rates.share_of_several_consumers if consumers > 1 else rates.share_of_one_consumer
    if work.loaded_columns != work.tile_n:
        share *= _SHARE_OF_ODD_WIDTHS
    elif work.planes == 1 and work.tile_n > 64 and work.tile_n % 64 != 0:
        share *= _SHARE_OF_NARROW_PANELS
    multiply = products * consumers * max(work.tile_n * _CLOCKS_OF_A_COLUMN, rates.least_wgmma) / share
    multiply *= math.pow(256 / work.tile_n, rates.narrowness)
    if work.cluster == 1:
        multiply *= rates.alone
    a_lines = work.tile_m * (1 + work.a_straddles)
    b_lines = work.loaded_columns / work.cluster * (1 + work.b_straddles)
    load = (work.a_planes * a_lines + work.b_planes * b_lines) * 128 / rates.l2_bytes
    return max(multiply, load, rates.least_step) + rates.step + rates.promotion * work.tile_m * work.tile_n


def _end_of_tile(work: Work, rates: _Rates) -> float:
    elements = work.tile_m * work.tile_n
    if work.reduced:
        return rates.store_partial * elements
    is_uneven = work.tile_n % work.line_columns != 0
    is_odd = work.tile_n > 32 and work.tile_n % 32 != 0  # lines are a quarter as long
    if work.stored_by_threads:
        store = rates.store_by_threads
        store += rates.store_unevenly if is_uneven and (is_odd or work.steps < rates.hides_store) else 0.0
        store *= rates.store_by_one_consumer if work.tile_m == 64 else 1.0
    else:
        # Chunks of the last tile leave between the steps of this one.
        store = rates.store_by_tma
        if is_odd:
            store += 2 * rates.store_short_lines
        elif is_uneven and work.steps < work.tile_n // 32:
            store += rates.store_short_lines
    if work.has_residual:
        store += rates.read_residual * (_UNEVEN_RESIDUAL if is_uneven else 1.0)
    return rates.tile + store * elements
