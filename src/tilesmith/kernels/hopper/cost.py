"""What a configuration of the `hopper` family is expected to cost.

The rates are data, tables `hopper.*` of the GPU's file in `planner/rates`; they say what they were fitted to.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.plan import Cost
from tilesmith.kernels.fp32_split.terms import term_products

_LINE_BYTES: Final = 128  # of results: Work.line_columns


@dataclass(frozen=True, slots=True)
class ProductRates:
    """The rates of products of 16-bit operands, or of float32 in several terms."""

    # Tensor cores.
    min_wgmma_clocks: float  # of a product of 64 x n x 16
    several_consumers_share: float  # of the tensor cores' rate
    one_consumer_share: float
    narrow_tile_exponent: float  # how much a tile loses that is less than 256 wide
    no_cluster_factor: float  # clocks of a block without a cluster, relative to one in it
    # A step of the pipeline.
    min_step_clocks: float
    step_clocks: float
    promotion_clocks: float  # of an element
    l2_bytes_per_clock: float  # that an SM gets when all of them ask; of a line of 128 bytes, read in two, half
    # The end of a tile.
    tile_clocks: float
    tma_store_clocks: float  # of an element
    thread_store_clocks: float
    one_consumer_store_factor: float  # of a block that has one: too few threads to wait for each other
    short_line_store_clocks: (
        float  # more, where a tile's width is not whole lines of 128 bytes, and no later tile hides it
    )
    uneven_store_clocks: float  # more by threads, where it is not
    store_hiding_steps: int  # of the next tile, that hide a store by threads
    residual_clocks: float  # of an element that is read
    partial_store_clocks: float
    last_store_clocks: float  # no later tile hides it
    # A launch.
    start_clocks: float
    cluster_start_clocks: float
    memory_start_clocks: float
    reduce_clocks: float
    # Memory.
    read_bytes_per_clock: float
    write_bytes_per_clock: float  # most of it hides behind reading
    partial_bytes_per_clock: float
    reread_share: float  # of what several tiles read: it comes from memory again
    # How sharply the slower of arithmetic and memory decides.
    sharpness: float


@dataclass(frozen=True, slots=True)
class CommonRates:
    """What either kind of products has."""

    column_clocks: float  # of a product of 64 x n x 16
    narrow_panel_share: float  # of the tensor cores' rate, where a tile's width is not made of 64 columns
    odd_width_share: float  # where columns of B are loaded and not used
    uneven_residual_factor: float  # where a tile's width is not made of lines of 128 bytes
    narrow_stripe_share: float  # more reading where parts of K read stripes of B that are less than 256 wide
    timer_clocks: float  # what the timings had of their own
    realign_clocks: float
    realign_bytes_per_clock: float  # read and written
    split_clocks: float
    split_bytes_per_clock: float  # read and written
    idle_launches_clocks: float  # of the terms with the wider range, which as a rule have nothing to do
    cuda_core_clock_factor: float  # they do what the tensor cores do not, at a higher clock: float32 counts theirs
    batched_cluster_factor: float  # more clocks of pairs of blocks where there are several matrices of terms


@dataclass(frozen=True, slots=True)
class RegisterStepRates:
    """A step along K that consumers split themselves."""

    step_clocks: float
    column_clocks: float  # for each column of the tile


@dataclass(frozen=True, slots=True)
class RegisterSplitRates:
    """What is different where A is split in registers."""

    read_bytes_per_clock: float
    range_check_clocks: float  # of the last block, which finds it; and a longer start
    one_consumer: RegisterStepRates
    two_consumers: RegisterStepRates


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `hopper` of a GPU's rates."""

    single: ProductRates
    terms: ProductRates
    common: CommonRates
    split_in_registers: RegisterSplitRates


class Work(NamedTuple):
    """The work of one product, as it is cut."""

    tile_m: int
    tile_n: int
    cluster: int
    split_k: int
    units: int  # tiles of all matrices and parts of K, those included that only fill a cluster
    steps: int  # of 64 along K, for one unit
    a_terms: int
    b_terms: int
    rs: bool  # A is split by those who multiply
    batches: int
    loaded_columns: int  # of B, for a tile
    a_straddles: bool  # the lines of a tile straddle those of L2
    b_straddles: bool
    input_bytes: int  # as the product reads them
    reread_bytes: int  # of operands that several tiles read, each time after the first
    output_elements: int
    copied_bytes: int  # of operands that are realigned, or split into terms
    is_float32: bool  # the operands are terms
    stored_by_threads: bool
    line_columns: int  # of results, in 128 bytes
    has_residual: bool
    reduced: bool

    @property
    def terms(self) -> int:
        """The most that an operand has."""
        return max(self.a_terms, self.b_terms)

    @property
    def products(self) -> int:
        """The products of terms that are not too small together."""
        return term_products(self.a_terms, self.b_terms)


def rates_of(device: Device) -> Rates:
    """What this family's costs depend on."""
    return rates.section(device, "hopper", Rates)


def cost(work: Work, device: Device) -> Cost:
    """The clocks from the first launch to the end of the last."""
    return cost_by(rates_of(device), work, device)


def cost_by(all_rates: Rates, work: Work, device: Device) -> Cost:
    """The clocks that they are at these rates."""
    tile, beside = tile_clocks(all_rates, work, device), clocks_beside(all_rates, work.copied_bytes, work.is_float32)
    return Cost(
        product=product_clocks(
            tile,
            arithmetic_clocks(tile, work.units, work.steps, work.batches),
            memory_clocks(tile, work.input_bytes, work.reread_bytes, work.output_elements, work.split_k),
        ),
        preparation=beside.preparation,
        idle_launches=beside.idle_launches,
        reduction=reduction_clocks(tile.rates, work.output_elements, work.split_k) if work.reduced else 0.0,
        scale=beside.scale,
        timer=beside.timer,
    )


@dataclass(frozen=True, slots=True)
class TileClocks:
    """What tiles cost, as far as it does not depend on how many there are."""

    rates: ProductRates
    blocks: int  # that run at the same time
    step: float  # along K
    end: float  # of a tile
    short_end: float  # of a tile with fewer than `short_steps` steps
    short_steps: int
    launch: float
    batched_factor: float
    read_bytes_per_clock: float
    stripe_factor: float  # more reading, where K is split
    written_bytes: int  # of an element


def tile_clocks(all_rates: Rates, work: Work, device: Device) -> TileClocks:
    """The clocks of the tiles of some work."""
    terms = work.terms
    common, product = all_rates.common, all_rates.terms if terms > 1 else all_rates.single
    short_steps = product.store_hiding_steps if work.stored_by_threads else work.tile_n // 32
    start = product.cluster_start_clocks if work.cluster > 1 else 0.0
    if work.rs:
        start += all_rates.split_in_registers.range_check_clocks
    return TileClocks(
        rates=product,
        blocks=device.sm_count // work.cluster * work.cluster,
        step=_step(work, all_rates, product, terms),
        end=_end_of_tile(work, common, product, is_short=False),
        short_end=_end_of_tile(work, common, product, is_short=True),
        short_steps=short_steps,
        launch=product.last_store_clocks * (work.tile_m * work.tile_n) + product.start_clocks + start,
        batched_factor=common.batched_cluster_factor if terms > 1 and work.cluster > 1 else 1.0,
        read_bytes_per_clock=(all_rates.split_in_registers if work.rs else product).read_bytes_per_clock,
        stripe_factor=1 + common.narrow_stripe_share * (1 - work.tile_n / 256),
        written_bytes=_LINE_BYTES // work.line_columns,
    )


def product_clocks(tile: TileClocks, arithmetic: float, memory: float) -> float:
    """The clocks of the launch that multiplies. The slower of the two decides, the other one counts a little."""
    sharpness = tile.rates.sharpness
    return math.pow(math.pow(arithmetic, sharpness) + math.pow(memory, sharpness), 1 / sharpness)


def arithmetic_clocks(tile: TileClocks, units: int, steps: int, batches: int) -> float:
    """The clocks that multiplying takes, if memory keeps up."""
    rounds = -(-units // tile.blocks)
    clocks = rounds * (steps * tile.step + (tile.short_end if steps < tile.short_steps else tile.end))
    return (clocks * tile.batched_factor if batches > 1 else clocks) + tile.launch


def memory_clocks(tile: TileClocks, input_bytes: int, reread_bytes: int, output_elements: int, split_k: int) -> float:
    """The clocks that reading and writing takes, if the tensor cores keep up."""
    reading = (input_bytes + tile.rates.reread_share * reread_bytes) / tile.read_bytes_per_clock
    if split_k > 1:
        reading *= tile.stripe_factor
    writing = output_elements * tile.written_bytes / tile.rates.write_bytes_per_clock
    return reading + writing + tile.rates.memory_start_clocks


class ClocksBeside(NamedTuple):
    """What all configurations of a product have in common."""

    preparation: float
    idle_launches: float
    scale: float
    timer: float

    def and_product(self, product: float, reduction: float) -> float:
        """All clocks together: Cost.cycles."""
        preparation, idle_launches, scale, timer = self
        return (product + preparation + idle_launches + reduction) * scale - timer

    def most_product(self, clocks: float) -> float:
        """The most clocks of a product with which all together are no more than so many; rounded up."""
        preparation, idle_launches, scale, timer = self
        return ((clocks + timer) / scale - preparation - idle_launches) * (1 + 1e-9)


def clocks_beside(all_rates: Rates, copied_bytes: int, is_float32: bool) -> ClocksBeside:
    """`copied_bytes`: of operands that are realigned or split first."""
    common = all_rates.common
    if is_float32:
        preparation = _split_clocks(copied_bytes, common) if copied_bytes else 0.0
        # The timer stays in: it counts in the times of the other family, too.
        return ClocksBeside(preparation, common.idle_launches_clocks, common.cuda_core_clock_factor, timer=0.0)
    return ClocksBeside(_realign_clocks(copied_bytes, common), 0.0, 1.0, common.timer_clocks)


def reduction_clocks(product: ProductRates, output_elements: int, split_k: int) -> float:
    """The clocks of the launch that adds the parts of K."""
    return product.reduce_clocks + output_elements * split_k * 4 / product.partial_bytes_per_clock


def split_clocks(split_bytes: int, device: Device) -> float:
    """The clocks of the launch that makes terms of so many bytes, on a device or on the stand-in."""
    return _split_clocks(split_bytes, rates_of(device).common)


def realign_clocks(copied_bytes: int, device: Device) -> float:
    """The clocks of the launch that realigns so many bytes, if there are any."""
    return _realign_clocks(copied_bytes, rates_of(device).common)


def idle_launches_clocks(device: Device) -> float:
    """The clocks of launches of the full-range scheme that have nothing to do."""
    return rates_of(device).common.idle_launches_clocks


def _realign_clocks(copied_bytes: int, common: CommonRates) -> float:
    return common.realign_clocks + 2 * copied_bytes / common.realign_bytes_per_clock if copied_bytes else 0.0


def _split_clocks(split_bytes: int, common: CommonRates) -> float:
    return common.split_clocks + 2 * split_bytes / common.split_bytes_per_clock


def _step(work: Work, all_rates: Rates, product: ProductRates, terms: int) -> float:
    consumers, tile_n = work.tile_m // 64, work.tile_n
    if work.rs:
        in_registers = all_rates.split_in_registers
        step = in_registers.one_consumer if consumers == 1 else in_registers.two_consumers
        return step.step_clocks + step.column_clocks * tile_n
    common = all_rates.common
    products = 4 * work.products
    share = product.several_consumers_share if consumers > 1 else product.one_consumer_share
    if work.loaded_columns != tile_n:
        share *= common.odd_width_share
    elif terms == 1 and tile_n > 64 and tile_n % 64 != 0:
        share *= common.narrow_panel_share
    multiply = products * consumers * max(tile_n * common.column_clocks, product.min_wgmma_clocks) / share
    multiply *= math.pow(256 / tile_n, product.narrow_tile_exponent)
    if work.cluster == 1:
        multiply *= product.no_cluster_factor
    a_lines = work.tile_m * (1 + work.a_straddles)
    b_lines = work.loaded_columns / work.cluster * (1 + work.b_straddles)
    load = (work.a_terms * a_lines + work.b_terms * b_lines) * 128 / product.l2_bytes_per_clock
    busy = max(multiply, load, product.min_step_clocks)
    return busy + product.step_clocks + product.promotion_clocks * work.tile_m * tile_n


def _end_of_tile(work: Work, common: CommonRates, product: ProductRates, *, is_short: bool) -> float:
    """`is_short`: the steps of the next tile are too few to hide the store."""
    elements = work.tile_m * work.tile_n
    if work.reduced:
        return product.partial_store_clocks * elements
    is_uneven = work.tile_n % work.line_columns != 0
    is_odd = work.tile_n > 32 and work.tile_n % 32 != 0  # lines are a quarter as long
    if work.stored_by_threads:
        is_seen = is_uneven and (is_odd or is_short)
        store = product.thread_store_clocks + (product.uneven_store_clocks if is_seen else 0.0)
        store *= product.one_consumer_store_factor if work.tile_m == 64 else 1.0
    else:
        # Chunks of the last tile leave between the steps of this one.
        store = product.tma_store_clocks
        if is_odd:
            store += 2 * product.short_line_store_clocks
        elif is_uneven and is_short:
            store += product.short_line_store_clocks
    if work.has_residual:
        store += product.residual_clocks * (common.uneven_residual_factor if is_uneven else 1.0)
    return product.tile_clocks + store * elements
