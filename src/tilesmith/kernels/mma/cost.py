"""What tiles are expected to cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.plan import Cost
from tilesmith.core.problem import Problem
from tilesmith.core.roofline import tensor_rate
from tilesmith.kernels.mma.operands import lines_of
from tilesmith.kernels.mma.tiles import MMA, Cut, Tile
from tilesmith.kernels.operand import round_up

_MIN_PART_TILES: Final = 2  # along K: the first ones of a part wait for memory
_MAX_SPLIT_K: Final = 64
_REACHED: Final = 0.87  # of the tensor cores' peak, by the best products that are published of an A100


@dataclass(frozen=True, slots=True)
class Rates:
    """A table of `mma` of a GPU's rates: of an SM, unless it says otherwise."""

    start_clocks: float  # of the launch, to the first values and from the last
    block_clocks: float  # of a block, also where another one went before
    multiply_adds_per_clock: float
    converted_values_per_clock: float
    load_bytes_per_clock: float  # from L2, when all SMs ask
    few_blocks_load_bytes_per_clock: float  # when few do: latency
    scalar_load_share: float  # what is left of either where operands are copied a value at a time
    step_clocks: float  # of a block, that it takes at least for a step along K
    scalar_step_clocks: float  # where an operand is copied a value at a time
    one_block_share: float  # of an SM, that one block reaches
    store_clocks: float  # of a result
    residual_clocks: float  # of a value of a residual that a thread reads
    memory_bytes_per_clock: float  # of the whole device
    reduce_clocks: float  # of the launch that adds the parts of K, apart from what it reads
    reduce_bytes_per_clock: float  # that are written and read: the sums of the parts


def tensor_rate_of(device: Device) -> float:
    """Multiply-adds of float16 with sums of float32 that the tensor cores of an SM finish in a clock; 0 if it is not
    known."""
    rate = tensor_rate(device.capability, "fp16") or 0.0
    return rate / 2 if "GeForce" in device.name else rate


def rates_of(device: Device, table: str, halves: int, fastest: str = "") -> Rates:
    """The nearest GPU's that were fitted; but the tiles of table `fastest` multiply no faster than the device's own
    tensor cores do, and others are slower in proportion. `halves`: how many products of 16-bit floats take as long as
    one of these."""
    fitted = rates.section(device, table, Rates)
    most = rates.section(device, fastest or table, Rates).multiply_adds_per_clock
    own = tensor_rate_of(device) * _REACHED / halves
    share = min(1.0, own / most) if own else 1.0
    return replace(fitted, multiply_adds_per_clock=fitted.multiply_adds_per_clock * share)


class Costs:
    """The cuts of one product, which is stored by rows, and their costs. What cuts have in common is found once: this
    is asked for every new shape."""

    __slots__ = (
        "_batches",
        "_beside",
        "_device",
        "_has_residual",
        "_itemsize",
        "_k",
        "_least_parts",
        "_load_share",
        "_m",
        "_memory",
        "_n",
        "_rates",
        "_read_bytes",
        "_step",
    )

    def __init__(
        self,
        problem: Problem,
        device: Device,
        rates: Rates,
        beside: Cost | None = None,
        longest_part: int | None = None,
        read_bytes: int | None = None,
    ) -> None:
        """`beside`: what it takes to read aligned copies of the operands, or else they are read as they lie.
        `longest_part`: of K, but for sums that are so long that there would be too many. `read_bytes`: of an element of
        an operand, if that is not what it has in memory."""
        lines = lines_of(problem) if beside is None else ()
        scalars = sum(not each.is_aligned for each in lines)
        self._beside = beside or Cost(product=0.0)
        self._m, self._n, self._k, self._batches = problem.m, problem.n, problem.k, problem.batches
        self._least_parts = 1 if longest_part is None else min(_MAX_SPLIT_K, -(-problem.k // longest_part))
        self._itemsize = problem.a.dtype.itemsize
        self._read_bytes = read_bytes or self._itemsize
        self._device, self._rates = device, rates
        self._load_share = 1 - (1 - rates.scalar_load_share) * scalars / 2
        self._step = rates.scalar_step_clocks if scalars else rates.step_clocks
        self._memory = _memory_clocks(problem, rates)
        self._has_residual = problem.epilogue is not None and problem.epilogue.residual is not None

    def cuts(self, tile: Tile) -> Iterator[Cut]:
        """K in as few parts as may be, and in as many as give each SM one block, two, ... all that it holds."""
        blocks, sm_count, k = self._tiles(tile), self._device.sm_count, self._k
        least = _filled_parts(Cut(tile, self._least_parts), k)
        yield Cut(tile, least)
        if 2 * blocks > sm_count * tile.blocks_per_sm or k < 2 * _MIN_PART_TILES * tile.k:
            return
        most = min(_MAX_SPLIT_K, k // (_MIN_PART_TILES * tile.k))
        found = {least}
        for on_an_sm in range(1, tile.blocks_per_sm + 1):
            split_k = _filled_parts(Cut(tile, min(most, max(1, sm_count * on_an_sm // blocks))), k)
            if split_k > least and split_k not in found:
                found.add(split_k)
                yield Cut(tile, split_k)

    def _tiles(self, tile: Tile) -> int:
        return -(-self._m // tile.m) * -(-self._n // tile.n) * self._batches

    def of(self, cut: Cut) -> Cost:
        """Clocks until the SM with the most blocks is done, if they are dealt out evenly; and those of the launch that
        adds the parts of K."""
        (tile, split_k), r, sm_count = cut, self._rates, self._device.sm_count
        m, n = tile.m, tile.n
        blocks = self._tiles(tile) * split_k
        on_an_sm = -(-blocks // sm_count)
        waves = -(-on_an_sm // self._blocks_at_once(tile))
        depth = round_up(self._k, MMA[2]) if split_k == 1 else cut.part_k(self._k)

        load_rate = r.load_bytes_per_clock
        if blocks < sm_count:
            few = r.few_blocks_load_bytes_per_clock
            load_rate = few + (load_rate - few) * blocks / sm_count
        load = (m + n) * self._read_bytes / (load_rate * self._load_share)
        multiply = m * n / r.multiply_adds_per_clock
        convert = (m * tile.warps_n + n * tile.warps_m) / r.converted_values_per_clock
        share = 1.0 if on_an_sm > 1 or tile.blocks_per_sm == 1 else r.one_block_share
        store = r.store_clocks * m * n
        work = depth * max(multiply / share, convert / share, load) + store
        waiting = -(-depth // tile.k) * self._step + store
        block = r.block_clocks
        if self._has_residual and split_k == 1:
            block += r.residual_clocks * m * n / tile.threads
        product = r.start_clocks + max(max(on_an_sm * work, waves * waiting) + waves * block, self._memory)
        reduction = 0.0
        if split_k > 1:
            partial_bytes = 2 * self._itemsize * split_k * self._m * self._n * self._batches
            reduction = r.reduce_clocks + partial_bytes / r.reduce_bytes_per_clock
        return replace(self._beside, product=product, reduction=reduction)

    def _blocks_at_once(self, tile: Tile) -> int:
        """Of an SM."""
        systems = self._device.shared_bytes_per_sm - self._device.shared_bytes_per_block
        shared_bytes = tile.shared_bytes(self._read_bytes) + systems
        return min(tile.blocks_per_sm, max(1, self._device.shared_bytes_per_sm // shared_bytes))


def _filled_parts(cut: Cut, k: int) -> int:
    """Parts of K are rounded up: the last ones may be empty."""
    return -(-k // cut.part_k(k))


def _memory_clocks(problem: Problem, r: Rates) -> float:
    """To read the operands and to write the output, each once."""
    p = problem
    return p.a.dtype.itemsize * p.batches * (p.m * p.n + (p.m + p.n) * p.k) / r.memory_bytes_per_clock


def min_cycles_of(problem: Problem, device: Device, r: Rates) -> float:
    """What multiplying and storing alone takes, if no SM ever waits, or memory."""
    p = problem
    per_element = p.k / r.multiply_adds_per_clock + r.store_clocks
    working = p.m * p.n * p.batches * per_element / device.sm_count + r.block_clocks
    return r.start_clocks + max(working, _memory_clocks(p, r))
