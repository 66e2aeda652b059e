"""The `simt` family: the CUDA cores, every type and stride, Turing and later.

A sum over K is one chain of multiply-adds in the order of K, in float32 for 16-bit types,
so a result depends neither on the tile nor on the rest of the batch.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import Buffer
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import Problem
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.simt import catalogue
from tilesmith.kernels.simt.catalogue import TILE_NAMES, TILES, Reads, Tile
from tilesmith.kernels.simt.launch import LANES, Parameters

__all__ = ["TILES", "Rates", "Tile", "candidates", "exclusions", "general_kernels", "plan", "rejects", "serves"]

_MAX_GRID_YZ: Final = 65535


@dataclass(frozen=True, slots=True)
class TileRates:
    """The shares of the SM's float32 multiply-add rate that a tile reaches (docs/notes/2026-11-simt.md)."""

    one_block_share: float  # that one resident block reaches
    full_share: float  # that blocks_per_sm of them reach
    scalar_share: float  # what is left of either when operands are read an element at a time


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `simt` of a GPU's rates."""

    block_clocks: float  # that a block spends before its first multiply-add and after its last
    store_clocks: float  # for each result that a thread has to store
    tiles: Mapping[str, TileRates]

    def __post_init__(self) -> None:
        if self.tiles.keys() != TILE_NAMES:
            raise ValueError(
                f"the tiles differ from the kernel's by {', '.join(sorted(self.tiles.keys() ^ TILE_NAMES))}"
            )


def serves(problem: Problem, device: Device) -> bool:
    return problem.a.dtype == problem.b.dtype


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    return None if serves(problem, device) else "takes operands of one type"


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile that suits the operands."""
    p, r = catalogue.oriented(problem), _rates(device)
    for tile, reads in catalogue.offered(p).items():
        yield Candidate(f"simt {tile}", _cost(p, device, tile, reads, r).cycles, partial(plan, problem, device, tile))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The tiles that do not suit them, each with its reason."""
    unsuited = catalogue.unsuited(catalogue.oriented(problem))
    return (Rejection(f"simt {tile}", reason) for tile, reason in unsuited)


def plan(problem: Problem, device: Device, tile: Tile) -> Plan:
    """The plan that uses this tile."""
    p = catalogue.oriented(problem)
    reads = Reads.of(p, tile)
    kernel = catalogue.kernel(p.a.dtype, tile, reads)
    cost = _cost(p, device, tile, reads, _rates(device))
    order: tuple[Buffer, Buffer] = ("a", "b") if p is problem else ("b", "a")
    every = Parameters.for_each_launch(p, (tile.m, tile.n), order, catalogue.out_vector(p))
    launches = (KernelLaunch(kernel, each, _grid(each), multiplies=True) for each in every)
    tiling = Tiling(
        rows=tile.m,
        columns=tile.n,
        workers="warps",
        worker_rows=LANES[0] * tile.thread_m,
        worker_columns=LANES[1] * tile.thread_n,
        units=math.ceil(p.m / tile.m) * math.ceil(p.n / tile.n) * p.batches,
        units_at_once=device.sm_count * tile.blocks_per_sm,
        swap_ab=p is not problem,
    )
    return Plan(
        problem=problem,
        device=device,
        family="simt",
        name=f"simt {tile}",
        launches=tuple(launches),
        cycles=cost.cycles,
        details=partial(Details, cost, tiling),
    )


def _grid(p: Parameters) -> tuple[int, int, int]:
    return p.tiles_m * p.tiles_n, min(p.batches, _MAX_GRID_YZ), math.ceil(p.batches / _MAX_GRID_YZ)


def general_kernels(device: Device) -> list[Kernel]:
    """The kernels that do any float32 product: one for each pair of directions in which operands may be read, along K
    or across it, A's first. All of them read single elements of a batch, with 64-bit strides, and can add to what the
    output has."""
    tile = catalogue.wide_index_tile(torch.float32)
    return [
        catalogue.kernel(torch.float32, tile, Reads(a_along_k, b_along_k, (1, 1)), may_add=True)
        for a_along_k, b_along_k in itertools.product((True, False), repeat=2)
    ]


def _rates(device: Device) -> Rates:
    return rates.section(device, "simt", Rates)


def _cost(problem: Problem, device: Device, tile: Tile, reads: Reads, r: Rates) -> Cost:
    """Clocks until the SM with the most blocks is done, if they are dealt out evenly."""
    shares = r.tiles[str(tile)]
    scalar_operands = reads.vectors.count(1)
    blocks = max(math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batches, 1)
    steps = catalogue.unrolled_k(problem.a.dtype, tile)
    depth = math.ceil(problem.k / steps) * steps
    work = tile.m * tile.n * depth / device.multiply_adds_per_clock
    work /= 1 - (1 - shares.scalar_share) * scalar_operands / 2
    rounds, rest = divmod(math.ceil(blocks / device.sm_count), tile.blocks_per_sm)

    overhead = r.block_clocks + r.store_clocks * tile.thread_m * tile.thread_n

    def round_cycles(resident: int) -> float:
        return resident * work / min(shares.one_block_share * resident, shares.full_share) + overhead

    return Cost(product=rounds * round_cycles(tile.blocks_per_sm) + (round_cycles(rest) if rest else 0.0))
