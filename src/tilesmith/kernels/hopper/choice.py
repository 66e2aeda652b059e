"""The choice of a configuration: which of them suit a product, what each costs, and which one is the cheapest."""

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K
from tilesmith.core.plan import Cost
from tilesmith.core.problem import Problem
from tilesmith.kernels import operand
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.fp32_split.terms import MAX_PARTS, SHORT_K
from tilesmith.kernels.hopper import catalogue
from tilesmith.kernels.hopper import cost as cost_model
from tilesmith.kernels.hopper.layout import (
    Configuration,
    Layout,
    cluster_tiles,
    fastest_first,
    may_skip_zeros,
    schemes_of,
    skips_zeros,
    sources_of,
)
from tilesmith.kernels.hopper.tiles import configurations, may_be_rs, orders, tiles_of, ways
from tilesmith.kernels.hopper.traits import Tile, shared_memory
from tilesmith.kernels.operand import Operand


def cheapest(problem: Problem, device: Device, must_swap: bool | None = None) -> tuple[Configuration | None, float]:
    """The configuration with the fewest expected clocks, and these; None if none suits the product. It is what the
    costs of `laid_out` say, in a fraction of the time: what does not depend on sizes is kept. `must_swap`: that
    swap_ab must be so; None if either will do."""
    best, least = None, math.inf
    batches, k_steps, elements = problem.batches, -(-problem.k // TILE_K), problem.m * problem.n * problem.batches
    for swap_ab in orders(problem, must_swap):
        p = fastest_first(problem.transposed if swap_ab else problem)
        m, n, sketch = p.m, p.n, Layout.sketched(p, swap_ab)
        fp32_a = operand.direct(p.a, sources_of(swap_ab)[0]) if may_be_rs(p) else None
        reads = _Reads.of(sketch, sketch.a, device), _Reads.of(sketch, fp32_a, device) if fp32_a else None
        tiles = ways(problem, device, swap_ab, _tiles(sketch, fp32_a, device))
        most, bound = _most_clocks(reads, least)
        for (tile_m, tile_n, blocks, step, whole, in_parts), split_k, units, max_cluster, may_split_a in tiles:
            steps = -(-k_steps // split_k)
            if -(-units // blocks) * steps * step > bound:
                continue  # whatever else there is
            tiles_n = -(-n // tile_n)
            for cluster, rs, is_partial, costs in whole if split_k == 1 else in_parts:
                if cluster > max_cluster or rs > may_split_a:
                    continue
                tiles_m = -(-m // (tile_m * cluster))
                units = tiles_m * tiles_n * cluster * split_k * batches
                arithmetic = cost_model.arithmetic_clocks(costs, units, steps, batches)
                if arithmetic > most[rs] or (read := reads[rs]) is None:
                    continue  # whatever memory takes
                a_bytes, b_bytes, beside = read
                reduction = cost_model.reduction_clocks(costs.rates, elements, split_k) if is_partial else 0.0
                reread = a_bytes * (tiles_n - 1) + b_bytes * (tiles_m - 1)
                memory = cost_model.memory_clocks(costs, a_bytes + b_bytes, reread, elements, split_k)
                clocks = beside.and_product(cost_model.product_clocks(costs, arithmetic, memory), reduction)
                if clocks < least:
                    best, least = (tile_m, tile_n, cluster, split_k, swap_ab, rs), clocks
                    most, bound = _most_clocks(reads, least)
    return None if best is None else Configuration(*best), least


class _Reads(NamedTuple):
    """What a product reads, and what comes before and after it."""

    a_bytes: int
    b_bytes: int
    beside: cost_model.ClocksBeside

    @classmethod
    def of(cls, layout: Layout, a: Operand, device: Device) -> "_Reads":
        batch, b = layout.problem.batch, layout.b
        a_bytes, b_bytes = a.bytes(batch), b.bytes(batch)
        copied, rates = a_bytes * a.is_copy + b_bytes * b.is_copy, cost_model.rates_of(device)
        return cls(a_bytes, b_bytes, cost_model.clocks_beside(rates, copied, layout.scheme is not None))


def _most_clocks(reads: Sequence[_Reads | None], least: float) -> tuple[list[float], float]:
    """The most clocks of a product that costs no more than `least`, for each way to read; and the most of them."""
    most = [0.0 if each is None else each.beside.most_product(least) for each in reads]
    return most, max(most)


# The cluster of a tile, whether A is split in registers, whether sums are partial products, and what the tiles cost.
_Offer = tuple[int, bool, bool, cost_model.TileClocks]
# Rows and columns of a tile; of its offers the most blocks at the same time, and the fewest clocks of a step along K;
# and the offers, if K is whole, and if it is split.
_OfferedTile = tuple[int, int, int, float, tuple[_Offer, ...], tuple[_Offer, ...]]


def _tiles(sketch: Layout, fp32_a: Operand | None, device: Device) -> tuple[_OfferedTile, ...]:
    """The tiles that suit products like this one. `fp32_a`: A if it is split in registers; None if it cannot be."""
    key = _kind(sketch, fp32_a, device)
    found = _known_tiles.get(key)
    if found is None:
        found = _known_tiles[key] = tuple(_offered(sketch, fp32_a, device))
    return found


def _offered(sketch: Layout, fp32_a: Operand | None, device: Device) -> Iterator[_OfferedTile]:
    in_registers = None if fp32_a is None else sketch.sketched_in_registers(fp32_a)
    in_parts = sketch.sketched_in_parts(), None if in_registers is None else in_registers.sketched_in_parts()
    for tile_m, tile_n in tiles_of(sketch.problem):
        whole = tuple(_offers(tile_m, tile_n, 1, sketch, in_registers, device))
        parts = tuple(_offers(tile_m, tile_n, 2, *in_parts, device))
        if whole or parts:
            costs = [costs for *_, costs in (*whole, *parts)]
            blocks, step = max(each.blocks for each in costs), min(each.step for each in costs)
            yield tile_m, tile_n, blocks, step, whole, parts


def _offers(
    tile_m: int, tile_n: int, split_k: int, sketch: Layout, in_registers: Layout | None, device: Device
) -> Iterator[_Offer]:
    for cluster, rs in itertools.product((1, 2), (False, True)):
        layout, c = in_registers if rs else sketch, Configuration(tile_m, tile_n, cluster, split_k, rs=rs)
        # Most are not offered, which is quickly seen.
        if layout is not None and _is_offered(layout, c) and excluded(layout, device, c) is None:
            tile = cost_model.tile_clocks(cost_model.rates_of(device), _work(layout, c), device)
            yield cluster, rs, layout.out.is_partial, tile


# By what decides which configurations suit a product, and what their tiles cost. There are a few hundred at most.
_known_tiles: Final[dict[tuple[Hashable, ...], tuple[_OfferedTile, ...]]] = {}


def _kind(sketch: Layout, fp32_a: Operand | None, device: Device) -> tuple[Hashable, ...]:
    """Everything that `excluded` and the costs of tiles depend on. Of sizes that is whether a tile stays with its
    columns, or leaves out zeros, where it may."""
    p, traits, out = sketch.problem, sketch.traits, sketch.out
    sized: tuple[Tile, ...] = ()
    if traits.only_stores or p.skips_zeros:
        sized = tuple([sketch.tile(device, Configuration(*shape)) for shape in catalogue.offered(traits)])
    return (
        *(device.name, device.sm_count, device.shared_bytes_per_block),
        *(p.accuracy, traits, len(p.batch), p.k <= TILE_K, p.k <= SHORT_K),
        *(out.is_partial, out.aligned, sketch.a.straddles, sketch.b.straddles),
        fp32_a and (fp32_a.mn_major, fp32_a.straddles),
        p.epilogue is not None and p.epilogue.residual is not None,
        *(may_skip_zeros(p), sized),
    )


def laid_out(problem: Problem, device: Device, must_swap: bool | None = None) -> Iterator[tuple[Configuration, Layout]]:
    """Every configuration that may be worth it, and the layout that it has."""
    layouts: dict[tuple[bool, bool, int], Layout] = {}
    for c in configurations(problem, device, must_swap):
        key = (c.swap_ab, c.rs, c.split_k)
        if key not in layouts:
            layouts[key] = Layout.of(problem, c, device)
        yield c, layouts[key]


def unsuited(problem: Problem, device: Device, configuration: Configuration) -> str | None:
    """Why this configuration cannot do a problem that the family can do; None if it can."""
    return unsuited_to(Layout.of(problem, configuration, device), device, configuration)


def unsuited_to(layout: Layout, device: Device, c: Configuration) -> str | None:
    traits, tile = layout.traits, layout.tile(device, c)
    if c.rs and not may_be_rs(layout.problem):
        return "only float32 that is not packed, in several terms and more than one step along K, is split on the way"
    if c.rs and not traits.rs:
        return "TMA cannot read A where it lies"
    if c.rs and c.split_k > MAX_PARTS:
        return f"what splits A in registers counts {MAX_PARTS} parts of K at most"
    if c.split_k > layout.k_steps:
        return f"K has fewer than {c.split_k} parts of {TILE_K}"
    if reason := traits.unsuited(tile):
        return reason
    alternatives = [(traits, tile)]
    if schemes := schemes_of(layout.problem):
        terms, own = schemes.full_range.terms, for_full_range(c)
        full_range = traits._replace(scale=Scale.EXPONENTS, a_terms=terms, b_terms=terms)
        alternatives.append((full_range, Tile(own.tile_m, own.tile_n, own.cluster)))
    for each, tile in alternatives:
        if shared_memory(each, tile, device.shared_bytes_per_block)[0] < each.min_stages:
            return f"{each.min_stages} stages do not fit in {device.shared_bytes_per_block} bytes of shared memory"
    return None


def excluded(layout: Layout, device: Device, c: Configuration) -> str | None:
    """Why a plan does not have this configuration; None if it may."""
    if reason := unsuited_to(layout, device, c):
        return reason
    if not _is_offered(layout, c):
        return f"the catalogue has no tiles of {c.tile_m}x{c.tile_n} in clusters of {c.cluster} for such products"
    if may_skip_zeros(layout.problem) and not skips_zeros(layout.problem, c):
        return "it would multiply zeros that others leave out"
    return None


def _is_offered(layout: Layout, c: Configuration) -> bool:
    return (c.tile_m, c.tile_n, c.cluster) in catalogue.offered(layout.traits)


def for_full_range(c: Configuration) -> Configuration:
    """How the bf16x3 scheme cuts the work where the ordinary one has this configuration."""
    tile = catalogue.for_full_range((c.tile_m, c.tile_n, c.cluster), c.rs)
    return Configuration(*tile, c.split_k, c.swap_ab, c.rs)


def cost(layout: Layout, device: Device, c: Configuration) -> Cost:
    """What a configuration that suits the layout is expected to cost."""
    return cost_model.cost(_work(layout, c), device)


def work(problem: Problem, device: Device, configuration: Configuration) -> cost_model.Work:
    """What a configuration has to do, as its cost depends on it."""
    return _work(Layout.of(problem, configuration, device), configuration)


def _work(layout: Layout, c: Configuration) -> cost_model.Work:
    p, a, b, out, traits = layout.problem, layout.a, layout.b, layout.out, layout.traits
    tiles_m, tiles_n = cluster_tiles(p, c)
    a_bytes, b_bytes = a.bytes(p.batch), b.bytes(p.batch)
    return cost_model.Work(
        tile_m=c.tile_m,
        tile_n=c.tile_n,
        cluster=c.cluster,
        split_k=c.split_k,
        units=tiles_m * tiles_n * c.cluster * c.split_k * p.batches,
        steps=math.ceil(layout.k_steps / c.split_k),
        a_terms=traits.a_terms,
        b_terms=traits.b_terms,
        rs=traits.rs,
        batches=p.batches,
        loaded_columns=traits.b_extent(c.tile_n),
        a_straddles=a.straddles,
        b_straddles=b.straddles,
        input_bytes=a_bytes + b_bytes,
        reread_bytes=a_bytes * (tiles_n - 1) + b_bytes * (tiles_m - 1),
        output_elements=p.m * p.n * p.batches,
        copied_bytes=sum(each.bytes(p.batch) for each in (a, b) if each.is_copy),
        is_float32=layout.scheme is not None,
        stored_by_threads=not out.aligned,
        line_columns=128 // out.dtype.itemsize,
        has_residual=p.epilogue is not None and p.epilogue.residual is not None,
        reduced=out.is_partial,
    )
