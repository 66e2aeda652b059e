"""float32, and float32 as TF32, as sums of 16-bit terms, which a warp multiplies in its registers: where there is no
wgmma.

A first launch splits both operands (fp32_split), a second one multiplies their terms. Two more do the same for values
out of the range of scaled float16 terms, and return at once if there are none: the GPU decides that by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final

import torch

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K
from tilesmith.core.plan import Cost, Kernel, KernelLaunch, Plan, Rejection
from tilesmith.core.problem import Problem
from tilesmith.kernels import output, split_k_reduce
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.launch import every_kernel as every_split
from tilesmith.kernels.fp32_split.launch import full_range_split, split_launch
from tilesmith.kernels.fp32_split.terms import SCHEMES, Schemes
from tilesmith.kernels.hopper.cost import idle_launches_clocks, split_clocks
from tilesmith.kernels.mma import fp32_launch
from tilesmith.kernels.mma.cost import Costs, Rates, min_cycles_of, rates_of, tensor_rate_of
from tilesmith.kernels.mma.family import LEAST_CAPABILITY, fits_a_grid, is_countable, planned, sources_of
from tilesmith.kernels.mma.operands import walked
from tilesmith.kernels.mma.tiles import FULL_RANGE_TILE, LARGE_TILES_OF_HALVES, TILES_OF_TERMS, Cut, Tile
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, round_up

NAME: Final = "fp32_mma"
_LEAST_RATE: Final = 3.3  # of the tensor cores, for one of the CUDA cores: three products take the place of one
_MIN_K: Final = 65  # in shorter sums of float32 terms have too few bits: torch rounds seldom
_MIN_ROWS: Final = 17  # and it sums fewer in several chains
# Of K, that is summed in one chain: torch has several where an output is small. By the most elements that it has.
_LONGEST_PARTS: Final = ((2**17, 1024), (2**20, 4096))
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Way:
    """How products of an accuracy are done."""

    schemes: Schemes
    tiles: tuple[Tile, ...]  # for ordinary values
    rates: str  # the table

    @property
    def products(self) -> int:
        """Of 16-bit floats, for one of float32."""
        terms_ = self.schemes.ordinary.terms
        return terms.term_products(terms_, terms_)


_WAYS: Final[dict[Accuracy, _Way]] = {
    "fp32": _Way(SCHEMES["fp32"], TILES_OF_TERMS, "mma.terms"),
    "tf32": _Way(SCHEMES["tf32"], LARGE_TILES_OF_HALVES, "mma.large_half"),
}


def runs_on(device: Device, accuracy: Accuracy) -> bool:
    """Whether the GPU can; and, if it has nothing faster than its CUDA cores otherwise, is faster so."""
    is_able = device.capability >= LEAST_CAPABILITY and device.capability != (9, 0)
    is_faster = accuracy == "tf32" or tensor_rate_of(device) >= _LEAST_RATE * device.multiply_adds_per_clock
    return is_able and accuracy in _WAYS and is_faster


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if device.capability == (9, 0):
        return "is for GPUs without wgmma"
    if {problem.a.dtype, problem.b.dtype, problem.out.dtype} != {torch.float32}:
        return "is for operands and outputs of float32"
    if problem.accuracy not in _WAYS:
        return f"does not sum as {problem.accuracy!r} asks for"
    if not runs_on(device, problem.accuracy):
        return f"three products on the tensor cores of {device.name} are no faster than one on its CUDA cores"
    return None


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    if problem.a.packed or problem.b.packed:
        return "has no use for packed operands"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    is_short = problem.k < _MIN_K or min(problem.m, problem.n) < _MIN_ROWS
    if is_short and problem.accuracy == "fp32":
        return "its terms have too few bits for sums that are so short, or so few"
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    p = problem.stored_by_rows
    depth = _WAYS[p.accuracy].schemes.full_range.stored * round_up(p.k, TILE_K)
    scales = problem.batches * terms.scale_pitch(max(p.m, p.n))
    if not is_countable(p) or max(depth, scales) > _INT_MAX or not fits_a_grid(FULL_RANGE_TILE, p.m, p.n, p.batches):
        return "its sizes or strides cannot be counted with 32 bits"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile, with K whole and in parts."""
    return (_candidate(problem, device, *each) for each in _costs(problem, device))


def cheapest(problem: Problem, device: Device) -> Candidate:
    """The one that is expected to take the least time."""
    return _candidate(problem, device, *min(_costs(problem, device), key=itemgetter(1)))


def min_cycles(problem: Problem, device: Device) -> float:
    return min_cycles_of(problem, device, _rates(_WAYS[problem.accuracy], device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """No tile is left out of what the family can do."""
    return iter(())


def _costs(problem: Problem, device: Device) -> Iterator[tuple[Cut, float]]:
    costs = _costs_of(problem, device)
    return ((cut, costs.of(cut).cycles) for tile in _tiles(problem) for cut in costs.cuts(tile))


def _tiles(problem: Problem) -> Iterator[Tile]:
    p = problem.stored_by_rows
    return (each for each in _WAYS[p.accuracy].tiles if fits_a_grid(each, p.m, p.n, p.batches))


def _costs_of(problem: Problem, device: Device) -> Costs:
    p, way = problem.stored_by_rows, _WAYS[problem.accuracy]
    split_bytes = (p.m + p.n) * p.k * p.batches * torch.float32.itemsize
    splitting, idle = split_clocks(split_bytes, device), idle_launches_clocks(device)
    beside = Cost(product=0.0, preparation=splitting, idle_launches=idle)
    longest = next((part for most, part in _LONGEST_PARTS if p.m * p.n * p.batches <= most), None)
    term_bytes = way.schemes.ordinary.terms * way.schemes.ordinary.dtype.itemsize
    return Costs(p, device, _rates(way, device), beside, longest, term_bytes)


def _rates(way: _Way, device: Device) -> Rates:
    return rates_of(device, way.rates, way.products)


def _candidate(problem: Problem, device: Device, cut: Cut, cycles: float) -> Candidate:
    return Candidate(f"{NAME} {cut}", cycles, partial(plan, problem, device, cut))


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    ways = [way for accuracy, way in _WAYS.items() if runs_on(device, accuracy)]
    for way in ways:
        yield from fp32_launch.kernels(device, way.schemes, way.tiles)
    if ways:
        a = torch.empty(128, 128, device="meta")
        sample = plan(Problem.of(a, a), device, Cut(TILES_OF_TERMS[0]))
        yield from every_split(sample.launches[0].kernel.parameters)
        yield from split_k_reduce.kernels()


def plan(problem: Problem, device: Device, cut: Cut) -> Plan:
    """The plan that uses this tile, and these parts of K."""
    p, split_k, schemes = problem.stored_by_rows, cut.split_k, _WAYS[problem.accuracy].schemes
    partials = output.partial(p.out, split_k * p.batches, 0) if split_k > 1 else None
    end = 0 if partials is None else round_up(partials.bytes, WORKSPACE_ALIGNMENT)
    matrices, sources, batch = (walked(p.a), walked(p.b.transposed)), sources_of(problem), p.batch[::-1]
    range_check = end + terms.range_check_offset(device)
    found, first = terms.find_pair(matrices, sources, batch, end, device)
    launches, ends = list[KernelLaunch](), list[int]()
    for scheme, tile in ((schemes.ordinary, cut.tile), (schemes.full_range, FULL_RANGE_TILE)):
        split, end = terms.split_pair(matrices, sources, batch, scheme, found, first, device)
        ends.append(end)
        if scheme.full_range:
            launches.append(full_range_split(launches[0], split, scheme))
        else:
            launches.append(split_launch(split, scheme, range_check, batch, device))
        own = Cut(tile, split_k)
        launches.append(fp32_launch.product_launch(p, own, scheme, split, range_check, partials, device))
    if partials is not None:
        launches.append(split_k_reduce.launch(p, partials, split_k))
    cost = _costs_of(problem, device).of(cut)
    return planned(problem, device, NAME, cut, launches, max(ends), cost)
