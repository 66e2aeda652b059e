"""What mma.cu and mma_large.cu multiply on the tensor cores: float64, float32 as doubles or as TF32, and 16 bits.

The operands are read as they lie, in one launch; by large tiles, only if their lines are aligned, or else a launch
before copies them. Where there are few tiles, K is cut into parts, whose sums a last launch adds in order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, Buffer
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels import output, realign, split_k_reduce
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.hopper.cost import realign_clocks
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.cost import Costs, Rates, min_cycles_of, rates_of
from tilesmith.kernels.mma.launch import Arithmetic
from tilesmith.kernels.mma.operands import Lines, Pair, Placed, lines_of, walked
from tilesmith.kernels.mma.tiles import (
    LARGE_TILES_OF_HALVES,
    LARGE_TILES_ON_TURING,
    TILES_OF_DOUBLES,
    TILES_OF_FLOAT64,
    TILES_OF_HALVES,
    TILES_OF_TF32,
    TILES_ON_TURING,
    Cut,
    Tile,
)
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, Operand, different_matrices, realigned, round_up

_MAX_TILES_M: Final = 65535  # of the grid's second dimension
_INT_MAX: Final = 2**31 - 1
LEAST_CAPABILITY: Final = (8, 0)  # which has copies that threads do not wait for, and products of bfloat16 and TF32
_TURING: Final = (7, 5)  # which has neither, but products of float16
_LARGEST_STEP: Final = max(
    max(tile.m, tile.n, tile.k)
    for tile in (*TILES_OF_DOUBLES, *TILES_OF_FLOAT64, *TILES_OF_TF32, *TILES_OF_HALVES, *LARGE_TILES_OF_HALVES)
)


@dataclass(frozen=True, slots=True)
class Mma:
    """One of the families: what it multiplies in, and its tiles."""

    name: str
    dtypes: tuple[torch.dtype, ...]  # of the operands and the output
    sums: torch.dtype
    tiles: tuple[Tile, ...]
    rates: str  # the table
    halves: int  # products of 16-bit floats that take as long as one of these
    capabilities: tuple[tuple[int, int], ...] = ()  # of the GPUs that are fast at it; none: LEAST_CAPABILITY and later
    large_tiles: tuple[Tile, ...] = ()  # and those for GPUs without wgmma
    large_rates: str = ""
    tiles_on_turing: tuple[Tile, ...] = ()  # of float16
    large_tiles_on_turing: tuple[Tile, ...] = ()

    def _dtypes_on(self, device: Device) -> tuple[torch.dtype, ...]:
        """Those for which the GPU has the instruction, and is fast at it: doubles are slow on most."""
        if self.capabilities:
            return self.dtypes if device.capability in self.capabilities else ()
        if device.capability >= LEAST_CAPABILITY:
            return self.dtypes
        return (torch.float16,) if self.tiles_on_turing and device.capability >= _TURING else ()

    def serves(self, problem: Problem, device: Device) -> bool:
        return self._rejects_type(problem, device) is None

    def _rejects_type(self, problem: Problem, device: Device) -> str | None:
        dtypes = self._dtypes_on(device)
        if not dtypes:
            names = ", ".join(f"{major}.{minor}" for major, minor in self.capabilities)
            return f"is for compute capability {names or '8.0 and later'}"
        dtype = problem.out.dtype
        if dtype not in dtypes or {problem.a.dtype, problem.b.dtype} != {dtype}:
            names = " or ".join(str(each).removeprefix("torch.") for each in dtypes)
            where = "" if dtypes == self.dtypes else f" on compute capability {'.'.join(map(str, device.capability))}"
            return f"is for operands and outputs of {names}{where}"
        if dtype == torch.float64:
            return None  # accuracies are float32's
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
        tiles = self._small_tiles_on(device)
        m, n, batches, largest = problem.m, problem.n, problem.batches, tiles[0]
        may_be_counted = is_countable(problem)
        if may_be_counted and fits_a_grid(largest, m, n, batches) and fits_a_grid(largest, n, m, batches):
            return None  # whichever way round
        p = problem.stored_by_rows
        if not may_be_counted or not any(fits_a_grid(tile, p.m, p.n, batches) for tile in tiles):
            return "its sizes or strides cannot be counted with 32 bits"
        return None

    def candidates(self, problem: Problem, device: Device) -> Iterator[Candidate]:
        """A plan for every tile that suits the product, with K whole and in parts."""
        return (self._candidate(problem, device, *each) for each in self._costs(problem, device))

    def cheapest(self, problem: Problem, device: Device) -> Candidate:
        """The one that is expected to take the least time."""
        return self._candidate(problem, device, *min(self._costs(problem, device), key=itemgetter(1)))

    def min_cycles(self, problem: Problem, device: Device) -> float:
        tables = (self.rates, self.large_rates) if self._large_tiles_on(device) else (self.rates,)
        return min(min_cycles_of(problem, device, self._rates(table, device)) for table in tables)

    def _rates(self, table: str, device: Device) -> Rates:
        return rates_of(device, table, self.halves, self.large_rates)

    def _small_tiles_on(self, device: Device) -> tuple[Tile, ...]:
        return self.tiles if device.capability >= LEAST_CAPABILITY else self.tiles_on_turing

    def _large_tiles_on(self, device: Device) -> tuple[Tile, ...]:
        if device.capability < LEAST_CAPABILITY:
            return self.large_tiles_on_turing
        return self.large_tiles if device.capability != (9, 0) else ()

    def tiles_on(self, device: Device) -> tuple[Tile, ...]:
        """All that plans may have on a GPU."""
        return (*self._small_tiles_on(device), *self._large_tiles_on(device))

    def _costs(self, problem: Problem, device: Device) -> Iterator[tuple[Cut, float]]:
        p = problem.stored_by_rows
        for tiles in (self._small_tiles_on(device), self._large_tiles_on(device)):
            suited = [tile for tile in tiles if fits_a_grid(tile, p.m, p.n, p.batches)]  # of what is not rejected
            if suited:
                costs = self._costs_of(p, device, are_large=suited[0].by_matrices)
                for cut in (cut for tile in suited for cut in costs.cuts(tile)):
                    yield cut, costs.of(cut).cycles

    def _costs_of(self, p: Problem, device: Device, *, are_large: bool) -> Costs:
        """Those of the large tiles or of the others, for a product that is stored by rows."""
        if not are_large:
            return Costs(p, device, self._rates(self.rates, device))
        realigning = realign_clocks(sum(operand_bytes(each, p) for each in _not_aligned(p)), device)
        return Costs(p, device, self._rates(self.large_rates, device), beside=Cost(product=0.0, preparation=realigning))

    def _candidate(self, problem: Problem, device: Device, cut: Cut, cycles: float) -> Candidate:
        return Candidate(f"{self.name} {cut}", cycles, partial(self.plan, problem, device, cut))

    def exclusions(self, problem: Problem, device: Device) -> Iterator[Rejection]:
        """The tiles that do not suit it, each with its reason."""
        p = problem.stored_by_rows
        for tile in self.tiles_on(device):
            if reason := _unsuited(tile, p):
                yield Rejection(f"{self.name} {tile}", reason)

    def kernels(self, device: Device) -> Iterator[Kernel]:
        """Every kernel that a plan may have."""
        if dtypes := self._dtypes_on(device):
            for dtype in dtypes:
                yield from launch.kernels(Arithmetic(dtype, self.sums, dtype), self.tiles_on(device))
            yield from split_k_reduce.kernels()
            if self._large_tiles_on(device):
                yield from realign.kernels()

    def plan(self, problem: Problem, device: Device, cut: Cut) -> Plan:
        """The plan that uses this tile, and these parts of K."""
        p, (tile, split_k) = problem.stored_by_rows, cut
        arithmetic = Arithmetic(p.a.dtype, self.sums, p.out.dtype)
        partials = output.partial(p.out, split_k * p.batches, 0, arithmetic.partials) if split_k > 1 else None
        end = 0 if partials is None else round_up(partials.bytes, WORKSPACE_ALIGNMENT)
        operands, copies, end = _operands(problem, tile, end)
        launches = [realign.launch(copies, p.batch[::-1])] if copies else []
        launches.append(launch.launch(p, arithmetic, cut, operands, partials))
        if partials is not None:
            launches.append(split_k_reduce.launch(p, partials, split_k))
        cost = self._costs_of(p, device, are_large=tile.by_matrices).of(cut)
        return planned(problem, device, self.name, cut, launches, end, cost)


def planned(
    problem: Problem, device: Device, family: str, cut: Cut, launches: list[KernelLaunch], workspace: int, cost: Cost
) -> Plan:
    """The plan that has these launches."""
    p, (tile, split_k) = problem.stored_by_rows, cut
    if device.capability < (9, 0):  # it waits for each launch before the next one, whatever a kernel does
        launches = [each._replace(awaits_predecessor=False) for each in launches]
    product = next(each for each in launches if each.multiplies)
    tiling = Tiling(
        rows=tile.m,
        columns=tile.n,
        workers="warps",
        worker_rows=tile.m // tile.warps_m,
        worker_columns=tile.n // tile.warps_n,
        units=math.prod(product.grid),
        units_at_once=device.sm_count * tile.blocks_per_sm,
        parts_of_k=split_k,
        worker_sets=tile.warps_k,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family=family,
        name=f"{family} {cut}",
        launches=tuple(launches),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
        workspace_bytes=workspace,
        split_k=split_k,
    )


def sources_of(problem: Problem) -> tuple[Buffer, Buffer]:
    """Where A and B of the product come from that is stored by rows."""
    return ("a", "b") if problem.stored_by_rows is problem else ("b", "a")


def _operands(problem: Problem, tile: Tile, end: int) -> tuple[Pair, list[tuple[Operand, Buffer]], int]:
    """Where the kernels of a tile read A and B; the copies in the workspace, from `end` on, that are made before; and
    where these end. Large tiles read aligned lines alone."""
    p, sources = problem.stored_by_rows, sources_of(problem)
    if not tile.by_matrices:
        a, b = lines_of(p)
        return (Placed.direct(p.a, sources[0], a), Placed.direct(p.b.transposed, sources[1], b)), [], end
    placed, copies = list[Placed](), list[tuple[Operand, Buffer]]()
    for matrix, source in zip((p.a, p.b.transposed), sources, strict=True):
        lines = Lines.of(matrix)
        if lines.is_aligned:
            placed.append(Placed.direct(matrix, source, lines))
        else:
            copy, end = realigned(walked(matrix), p.batch[::-1], end)
            copies.append((copy, source))
            placed.append(Placed.copied(copy))
    return (placed[0], placed[1]), copies, end


def _not_aligned(p: Problem) -> list[Matrix]:
    """What large tiles do not read where it lies."""
    return [each for each in (p.a, p.b.transposed) if not Lines.of(each).is_aligned]


def operand_bytes(matrix: Matrix, p: Problem) -> int:
    return matrix.rows * matrix.columns * different_matrices(matrix.batch_strides, p.batch) * matrix.dtype.itemsize


def _unsuited(tile: Tile, p: Problem) -> str | None:
    if not is_countable(p):
        return "sizes, or steps inside of a tile, cannot be counted with 32 bits"
    return None if fits_a_grid(tile, p.m, p.n, p.batches) else "has more tiles than a grid may have"


def is_countable(p: Problem) -> bool:
    a, b = p.a, p.b
    stride = max(a.row_stride, a.column_stride, b.row_stride, b.column_stride)
    return max(p.m, p.n, p.k, stride * _LARGEST_STEP) <= _INT_MAX - _LARGEST_STEP


def fits_a_grid(tile: Tile, m: int, n: int, batches: int) -> bool:
    return math.ceil(m / tile.m) <= _MAX_TILES_M and math.ceil(n / tile.n) * batches <= _INT_MAX


FP64: Final = Mma(
    "fp64_mma",
    (torch.float32,),
    torch.float64,
    TILES_OF_DOUBLES,
    "mma.fp64",
    halves=16,
    capabilities=((9, 0),),
)
FLOAT64: Final = Mma(
    "double_mma",
    (torch.float64,),
    torch.float64,
    TILES_OF_FLOAT64,
    "mma.float64",
    halves=16,
    capabilities=((8, 0), (9, 0), (10, 0)),
)
TF32: Final = Mma("tf32_mma", (torch.float32,), torch.float32, TILES_OF_TF32, "mma.tf32", halves=2)
HALF: Final = Mma(
    "half_mma",
    (torch.float16, torch.bfloat16),
    torch.float32,
    TILES_OF_HALVES,
    "mma.half",
    halves=1,
    large_tiles=LARGE_TILES_OF_HALVES,
    large_rates="mma.large_half",
    tiles_on_turing=TILES_ON_TURING,
    large_tiles_on_turing=LARGE_TILES_ON_TURING,
)
