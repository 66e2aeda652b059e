"""The choice of a configuration: which of them suit a product, what each costs, and which one is the cheapest."""

import math
from collections.abc import Hashable, Iterator
from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K
from tilesmith.core.plan import Cost
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp32_split.terms import MAX_PARTS
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
)
from tilesmith.kernels.hopper.tiles import Cut, configurations, cuts, may_be_rs
from tilesmith.kernels.hopper.traits import Scale, Tile, Traits, shared_memory


def cheapest(problem: Problem, device: Device) -> tuple[Configuration | None, float]:
    """The configuration with the fewest expected clocks, and these; None if none suits the product. It is what the
    costs of `laid_out` say, in a fraction of the time: what does not depend on sizes is kept."""
    best, least = None, math.inf
    sides = _Sides(problem, device)
    for cut in cuts(problem, device):
        side = sides[cut[4], cut[5], cut[3] > 1]
        if side is not None and (clocks := side.clocks(cut, least)) < least:
            best, least = cut, clocks
    return None if best is None else Configuration(*best), least


class _Sides(dict[tuple[bool, bool, bool], "_Side | None"]):
    """The sides of a product by whether it is transposed, splits A in registers, and splits K: each is made when it is
    asked for. None if TMA cannot read what is to be split."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self._problem, self._device = problem, device
        self._sketches: dict[bool, Layout] = {}

    def __missing__(self, key: tuple[bool, bool, bool]) -> "_Side | None":
        swap_ab, rs, splits_k = key
        sketch: Layout | None = self._sketches.get(swap_ab)
        if sketch is None:
            p = fastest_first(self._problem.transposed if swap_ab else self._problem)
            sketch = self._sketches[swap_ab] = Layout.sketched(p, swap_ab)
        if rs:
            sketch = sketch.sketched_in_registers(swap_ab)
        side = None
        if sketch is not None:
            side = _Side(sketch.sketched_in_parts() if splits_k else sketch, self._device)
        self[key] = side
        return side


class _Side:
    """What the configurations of a product have in common that compute it transposed or not, split A in registers or
    not, and split K or not."""

    __slots__ = (
        *("_a_bytes", "_b_bytes", "_batches", "_beside", "_device", "_is_partial", "_k_steps"),
        *("_known", "_layout", "_m", "_n", "_output_elements", "_sizes_matter", "_work"),
    )

    def __init__(self, layout: Layout, device: Device) -> None:
        p = layout.problem
        self._layout, self._device = layout, device
        self._m, self._n, self._k_steps, self._batches = p.m, p.n, layout.k_steps, p.batches
        self._a_bytes, self._b_bytes = layout.a.bytes(p.batch), layout.b.bytes(p.batch)
        self._output_elements = p.m * p.n * p.batches
        traits = layout.traits
        self._is_partial = layout.out.is_partial
        self._sizes_matter = traits.only_stores or p.skips_zeros
        self._known = _known_tiles.setdefault(_kind(layout, traits, device), {})
        copied = self._a_bytes * layout.a.is_copy + self._b_bytes * layout.b.is_copy
        self._work: cost_model.Work | None = None  # of any configuration
        rates = cost_model.rates_of(device)
        self._beside = cost_model.clocks_beside(rates, copied, layout.scheme is not None)

    def clocks(self, cut: Cut, limit: float) -> float:
        """The expected clocks of a configuration; infinite if it does not suit the product, or they are more than
        `limit`."""
        tile_m, tile_n, cluster, split_k, _, _ = cut
        key = self._layout.tile(self._device, Configuration(*cut)) if self._sizes_matter else cut[:3]
        try:
            tile = self._known[key]
        except KeyError:
            tile = self._known[key] = self._tile(Configuration(*cut))
        if tile is None:
            return math.inf
        beside, reduction = self._beside, 0.0
        if self._is_partial:
            reduction = cost_model.reduction_clocks(tile.rates, self._output_elements, split_k)
        tiles_m, tiles_n = -(-self._m // (tile_m * cluster)), -(-self._n // tile_n)
        units = tiles_m * tiles_n * cluster * split_k * self._batches
        arithmetic = cost_model.arithmetic_clocks(tile, units, -(-self._k_steps // split_k), self._batches)
        if (arithmetic + beside.preparation + beside.idle_launches + reduction) * beside.scale - beside.timer > limit:
            return math.inf
        memory = cost_model.memory_clocks(
            tile,
            self._a_bytes + self._b_bytes,
            self._a_bytes * (tiles_n - 1) + self._b_bytes * (tiles_m - 1),
            self._output_elements,
            split_k,
        )
        product = cost_model.product_clocks(tile, arithmetic, memory)
        return (product + beside.preparation + beside.idle_launches + reduction) * beside.scale - beside.timer

    def _tile(self, c: Configuration) -> cost_model.TileClocks | None:
        """What tiles of a configuration cost; None if it does not suit the product."""
        is_offered = _is_offered(self._layout, c)  # most are not, which is quickly seen
        if not is_offered or excluded(self._layout, self._device, c) is not None:
            return None
        if self._work is None:
            self._work = _work(self._layout, c)
        # What else there is of the work does not count for a tile.
        columns = self._layout.traits.b_extent(c.tile_n)
        work = self._work._replace(tile_m=c.tile_m, tile_n=c.tile_n, cluster=c.cluster, loaded_columns=columns)
        return cost_model.tile_clocks(cost_model.rates_of(self._device), work, self._device)


# By what decides which configurations suit a product, and what their tiles cost. There are a few hundred at most.
_known_tiles: Final[dict[tuple[Hashable, ...], dict[tuple[Hashable, ...], cost_model.TileClocks | None]]] = {}


def _kind(layout: Layout, traits: Traits, device: Device) -> tuple[Hashable, ...]:
    """Everything apart from sizes that `unsuited_to` and the costs of tiles depend on."""
    p = layout.problem
    has_residual = p.epilogue is not None and p.epilogue.residual is not None
    gpu = (device.name, device.sm_count, device.shared_bytes_per_block)
    straddles = layout.a.straddles, layout.b.straddles
    return (gpu, p.accuracy, traits, layout.out.is_partial, *straddles, has_residual, may_skip_zeros(p))


def laid_out(problem: Problem, device: Device) -> Iterator[tuple[Configuration, Layout]]:
    """Every configuration that may be worth it, and the layout that it has."""
    layouts: dict[tuple[bool, bool, int], Layout] = {}
    for c in configurations(problem, device):
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
