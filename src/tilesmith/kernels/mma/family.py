"""What mma.cu multiplies on the tensor cores: float32 as doubles or as TF32, and 16 bits.

The operands are read as they lie, in one launch. Where there are few tiles, K is cut into parts, whose sums a last
launch adds in order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS
from tilesmith.core.plan import Cost, Details, Kernel, Plan, Rejection, Tiling
from tilesmith.core.problem import Problem
from tilesmith.kernels import output, split_k_reduce
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.cost import Costs, Rates, min_cycles
from tilesmith.kernels.mma.launch import Arithmetic
from tilesmith.kernels.mma.tiles import TILES_OF_DOUBLES, TILES_OF_HALVES, TILES_OF_TF32, Cut, Tile

_MAX_TILES_M: Final = 65535  # of the grid's second dimension
_INT_MAX: Final = 2**31 - 1
_LEAST_CAPABILITY: Final = (8, 0)  # which has copies that threads do not wait for, and products of bfloat16 and TF32
_LARGEST_STEP: Final = max(
    max(tile.m, tile.n, tile.k) for tile in (*TILES_OF_DOUBLES, *TILES_OF_TF32, *TILES_OF_HALVES)
)


@dataclass(frozen=True, slots=True)
class Mma:
    """One of the families: what it multiplies in, and its tiles."""

    name: str
    dtypes: tuple[torch.dtype, ...]  # of the operands and the output
    sums: torch.dtype
    tiles: tuple[Tile, ...]
    rates: str  # the table

    def runs_on(self, device: Device) -> bool:
        """Whether the GPU has the instruction, and is fast at it: doubles are slow on most."""
        return device.capability == (9, 0) if self.sums == torch.float64 else device.capability >= _LEAST_CAPABILITY

    def serves(self, problem: Problem, device: Device) -> bool:
        return self._rejects_type(problem, device) is None

    def _rejects_type(self, problem: Problem, device: Device) -> str | None:
        if not self.runs_on(device):
            return f"is for compute capability {'9.0' if self.sums == torch.float64 else '8.0 and later'}"
        dtype = problem.out.dtype
        if dtype not in self.dtypes or {problem.a.dtype, problem.b.dtype} != {dtype}:
            names = " or ".join(str(each).removeprefix("torch.") for each in self.dtypes)
            return f"is for operands and outputs of {names}"
        if problem.accuracy == "ieee":
            return "does not sum in one chain"
        if dtype == self.sums and problem.accuracy != "tf32":
            return "rounds its operands to TF32"
        return None

    def rejects(self, problem: Problem, device: Device) -> str | None:
        """Why this family cannot do the problem."""
        if reason := self._rejects_type(problem, device):
            return reason
        if problem.k == 0 or problem.is_empty:
            return "there is nothing to multiply"
        if len(problem.batch) > MAX_BATCH_DIMS:
            return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
        m, n, batches, largest = problem.m, problem.n, problem.batches, self.tiles[0]
        is_countable = _is_countable(problem)
        if is_countable and _fits_a_grid(largest, m, n, batches) and _fits_a_grid(largest, n, m, batches):
            return None  # whichever way round
        p = problem.stored_by_rows
        if not is_countable or not any(_fits_a_grid(tile, p.m, p.n, batches) for tile in self.tiles):
            return "its sizes or strides cannot be counted with 32 bits"
        return None

    def candidates(self, problem: Problem, device: Device) -> Iterator[Candidate]:
        """A plan for every tile that suits the product, with K whole and in parts."""
        return (self._candidate(problem, device, cut, sum(clocks)) for cut, clocks in self._costs(problem, device))

    def cheapest(self, problem: Problem, device: Device) -> Candidate:
        """The one that is expected to take the least time."""
        cut, clocks = min(self._costs(problem, device), key=lambda each: sum(each[1]))
        return self._candidate(problem, device, cut, sum(clocks))

    def min_cycles(self, problem: Problem, device: Device) -> float:
        return min_cycles(problem, device, self._rates(device))

    def _rates(self, device: Device) -> Rates:
        return rates.section(device, self.rates, Rates)

    def _costs(self, problem: Problem, device: Device) -> Iterator[tuple[Cut, tuple[float, float]]]:
        p = problem.stored_by_rows
        costs = Costs(p, device, self._rates(device))
        suited = [tile for tile in self.tiles if _fits_a_grid(tile, p.m, p.n, p.batches)]  # of what is not rejected
        return ((cut, costs.of(cut)) for tile in suited for cut in costs.cuts(tile))

    def _candidate(self, problem: Problem, device: Device, cut: Cut, cycles: float) -> Candidate:
        return Candidate(f"{self.name} {cut}", cycles, partial(self.plan, problem, device, cut))

    def exclusions(self, problem: Problem, device: Device) -> Iterator[Rejection]:
        """The tiles that do not suit it, each with its reason."""
        p = problem.stored_by_rows
        for tile in self.tiles:
            if reason := _unsuited(tile, p):
                yield Rejection(f"{self.name} {tile}", reason)

    def kernels(self, device: Device) -> Iterator[Kernel]:
        """Every kernel that a plan may have."""
        if self.runs_on(device):
            for dtype in self.dtypes:
                yield from launch.kernels(Arithmetic(dtype, self.sums), self.tiles)
            yield from split_k_reduce.kernels()

    def plan(self, problem: Problem, device: Device, cut: Cut) -> Plan:
        """The plan that uses this tile, and these parts of K."""
        p, (tile, split_k) = problem.stored_by_rows, cut
        arithmetic = Arithmetic(p.out.dtype, self.sums)
        partials = output.partial(p.out, split_k * p.batches, 0, arithmetic.partials) if split_k > 1 else None
        launches = [launch.launch(problem, arithmetic, cut, partials)]
        if partials is not None:
            launches.append(split_k_reduce.launch(p, partials, split_k))
        if device.capability < (9, 0):  # it waits for each launch before the next one, whatever a kernel does
            launches = [each._replace(awaits_predecessor=False) for each in launches]
        product, reduction = Costs(p, device, self._rates(device)).of(cut)
        cost = Cost(product=product, reduction=reduction)
        tiling = Tiling(
            rows=tile.m,
            columns=tile.n,
            workers="warps",
            worker_rows=tile.m // tile.warps_m,
            worker_columns=tile.n // tile.warps_n,
            units=math.prod(launches[0].grid),
            units_at_once=device.sm_count * tile.blocks_per_sm,
            parts_of_k=split_k,
            worker_sets=tile.warps_k,
            swap_ab=p is not problem,
        )
        return Plan(
            problem=problem,
            device=device,
            family=self.name,
            name=f"{self.name} {cut}",
            launches=tuple(launches),
            cycles=cost.cycles,
            details=partial(Details, cost, tiling),
            workspace_bytes=0 if partials is None else partials.bytes,
            split_k=split_k,
        )


def _unsuited(tile: Tile, p: Problem) -> str | None:
    if not _is_countable(p):
        return "sizes, or steps inside of a tile, cannot be counted with 32 bits"
    return None if _fits_a_grid(tile, p.m, p.n, p.batches) else "has more tiles than a grid may have"


def _is_countable(p: Problem) -> bool:
    a, b = p.a, p.b
    stride = max(a.row_stride, a.column_stride, b.row_stride, b.column_stride)
    return max(p.m, p.n, p.k, stride * _LARGEST_STEP) <= _INT_MAX - _LARGEST_STEP


def _fits_a_grid(tile: Tile, m: int, n: int, batches: int) -> bool:
    return math.ceil(m / tile.m) <= _MAX_TILES_M and math.ceil(n / tile.n) * batches <= _INT_MAX


FP64: Final = Mma("fp64_mma", (torch.float32,), torch.float64, TILES_OF_DOUBLES, "mma.fp64")
TF32: Final = Mma("tf32_mma", (torch.float32,), torch.float32, TILES_OF_TF32, "mma.tf32")
HALF: Final = Mma("half_mma", (torch.float16, torch.bfloat16), torch.float32, TILES_OF_HALVES, "mma.half")
