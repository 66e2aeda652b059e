"""The `sm90` family: Hopper's tensor cores, for 16-bit operands and for float32 as sums of 16-bit planes.

The copy engine reads the operands where they lie, in any of the four layouts; where their strides do not
allow that, a first launch realigns them; another splits float32 into planes. K may be split; the parts are then added
by a last launch, in order. Without a split, an element's sum of 16-bit products is the same whatever the tile: it
depends on its row and column alone.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels import operand, planes, result, sm90_cost
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import MOST_BATCH_DIMENSIONS, TILE_K, round_up
from tilesmith.kernels.planes import SCHEMES
from tilesmith.kernels.sm90_product import (
    WGMMA_M,
    WIDEST_PROMOTED,
    Layout,
    Runs,
    b_extent,
    cluster_tiles,
    clusters_at_once,
    clusters_of,
    fastest_first,
    product_stage,
    schemes_of,
    shared_memory,
)
from tilesmith.kernels.sm90_product import Configuration as Configuration
from tilesmith.plan import Buffer, Cost, Plan, Rejection, Stage, Tiling
from tilesmith.problem import ALIGNMENT, Matrix, Problem

# Rows are 64 for each consumer.
FLOAT32_TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (256, 224, 192, 160, 128, 96, 64, 32)),
    *((64, n) for n in (256, 192, 128, 96, 64, 32, 16, 8)),
)
# Of 16-bit operands. The more sizes there are, the less of the last tiles is empty, and the fuller is the last round.
TILES: Final[tuple[tuple[int, int], ...]] = (
    *((192, n) for n in (176, 160, 128)),
    *FLOAT32_TILES,
)
_MOST_CONSUMERS: Final = 2  # whose threads have registers for anything
_WIDEST_OF_RAW: Final = 128  # where there are two sets of sums and planes in registers
_MOST_TIMES_SPLIT: Final = 4  # columns of tiles, for each of which a raw A is split again
_WIDEST_OF_WIDE: Final = 96  # columns of a tile, where there are three sets of sums
_WIDEST_OF_WIDE_RAW: Final = 64  # and planes in registers
_LEAST_K: Final = 33  # torch rounds shorter sums less often than planes have bits for
# Where there are two sets of sums.
PROMOTED_TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (WIDEST_PROMOTED, 176, 160, 144, 128, 112, 96, 64, 32)),
    *((64, n) for n in (WIDEST_PROMOTED, 128, 96, 64, 32, 16, 8)),
)
_LEAST_TILE: Final = (64, 8)
_LEAST_PANEL: Final = 16  # columns of a tile that any B can have
_FEW_ROWS: Final = 256  # up to these the transposed product is considered
_LEAST_SPLIT_STEPS: Final = 4  # steps along K that a split is worth
_MOST_SPLITS: Final = 128
_TILE_OF_TORCH: Final = 128 * 256  # elements of the output that keep one SM busy
_LEAST_CLUSTER_STEPS: Final = 4  # steps along K that are worth waiting for a neighbour

_LEAST_STAGES: Final = 2
_SWIZZLE_LINES: Final = 8  # the swizzle's pattern repeats after these
_INT_MAX: Final = 2**31 - 1


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if device.capability != (9, 0):
        return f"needs compute capability 9.0, and {device.name} has {'.'.join(map(str, device.capability))}"
    has_float32 = torch.float32 in (problem.a.dtype, problem.b.dtype)
    if has_float32 and problem.accuracy not in SCHEMES:
        return f"does not sum as {problem.accuracy!r} asks for"
    if has_float32 and problem.accuracy == "fp32" and problem.k < _LEAST_K:
        return "its planes have too few bits for sums that are so short"
    if problem.a.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"multiplies float16, bfloat16 and float32, not {str(problem.a.dtype).removeprefix('torch.')}"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if len(problem.batch) > MOST_BATCH_DIMENSIONS:
        return f"walks {MOST_BATCH_DIMENSIONS} batch dimensions at most, and this product has {len(problem.batch)}"
    if any(_repeats(matrix) for matrix in (problem.a, problem.b)):
        return "an operand repeats its rows or columns, and would have to be written out"
    tiles = math.ceil(max(problem.m, problem.n) / _LEAST_TILE[1]) * math.ceil(
        min(problem.m, problem.n) / _LEAST_TILE[0]
    )
    counted = [problem.m, problem.n, problem.k, tiles * problem.batches * _MOST_SPLITS]
    if schemes := schemes_of(problem):
        counted.append(schemes.wide.stored * round_up(problem.k, TILE_K))
        counted.append(problem.batches * planes.scale_pitch(max(problem.m, problem.n)))
    if max(counted) > _INT_MAX:
        return "its sizes cannot be counted with 32 bits"
    return None


def _repeats(matrix: Matrix) -> bool:
    return (matrix.rows > 1 and matrix.row_stride == 0) or (matrix.columns > 1 and matrix.column_stride == 0)


def configurations(problem: Problem, device: Device) -> Iterator[Configuration]:
    """Every way to cut the work that may be worth it."""
    k_steps = math.ceil(problem.k / TILE_K)
    for swap in (False, True) if problem.m < problem.n and problem.m <= _FEW_ROWS else (False,):
        m, n = (problem.n, problem.m) if swap else (problem.m, problem.n)
        for tile_m, tile_n in _tiles(problem):
            if tile_n >= 2 * max(n, _LEAST_PANEL) or tile_m - WGMMA_M >= m:
                continue  # at least half of it would be empty, or a consumer idle
            tiles_n = math.ceil(n / tile_n)
            tiles = math.ceil(m / tile_m) * tiles_n * problem.batches
            may_be_raw = _may_be_raw(problem) and tile_n <= _WIDEST_OF_RAW and tiles_n <= _MOST_TIMES_SPLIT
            for splits in _splits(tiles, k_steps, device, _least_splits(problem, device)):
                clusters = (1, 2) if m > tile_m and k_steps >= splits * _LEAST_CLUSTER_STEPS else (1,)
                for cluster, raw in itertools.product(clusters, (False, True) if may_be_raw else (False,)):
                    yield Configuration(tile_m, tile_n, cluster, splits, swap, raw)


def _tiles(problem: Problem) -> tuple[tuple[int, int], ...]:
    if _promotes(problem):
        return PROMOTED_TILES
    return TILES if schemes_of(problem) is None else FLOAT32_TILES


def _may_be_raw(problem: Problem) -> bool:
    is_packed, is_mixed = problem.a.packed or problem.b.packed, problem.a.dtype != problem.b.dtype
    return _promotes(problem) and not is_packed and not is_mixed


def _promotes(problem: Problem) -> bool:
    schemes = schemes_of(problem)
    return schemes is not None and schemes.ordinary.planes > 1 and problem.k > TILE_K


def _least_splits(problem: Problem, device: Device) -> int:
    """Of float32 in one plane: tensor cores cut off what they add, and the longer a sum, the more. torch splits the
    sums of small outputs, and is to have no less error."""
    schemes = schemes_of(problem)
    if schemes is None or schemes.ordinary.planes > 1:
        return 1
    tiles = problem.m * problem.n * problem.batches / _TILE_OF_TORCH
    return max(1, min(problem.k // (_LEAST_SPLIT_STEPS * TILE_K), int(device.sm_count / tiles)))


def _splits(tiles: int, k_steps: int, device: Device, least: int) -> Iterator[int]:
    """One, or as few as there may be, and what fills the SMs once or twice."""
    most = min(k_steps // _LEAST_SPLIT_STEPS, _MOST_SPLITS)
    least = min(least, max(most, 1))
    once, twice = (min(rounds * device.sm_count // tiles, most) for rounds in (1, 2))
    yield least
    if once > least:
        yield once
    if twice > max(once, 2, least):
        yield twice


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every configuration that suits the product."""
    for c, layout in _laid_out(problem, device):
        if _unsuited(layout, device, c) is None and _wasteful(layout, c) is None:
            yield Candidate(f"sm90 {c}", _cost(layout, device, c), partial(plan, problem, device, c))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The configurations that do not suit it, each with its reason."""
    for c, layout in _laid_out(problem, device):
        if reason := _unsuited(layout, device, c) or _wasteful(layout, c):
            yield Rejection(f"sm90 {c}", reason)


def _laid_out(problem: Problem, device: Device) -> Iterator[tuple[Configuration, Layout]]:
    layouts: dict[tuple[bool, bool, int], Layout] = {}
    for c in configurations(problem, device):
        key = (c.swap, c.raw, c.splits)
        if key not in layouts:
            layouts[key] = Layout.of(problem, c, device)
        yield c, layouts[key]


def unsuited(problem: Problem, device: Device, configuration: Configuration) -> str | None:
    """Why this configuration cannot do a problem that the family can do; None if it can."""
    return _unsuited(Layout.of(problem, configuration, device), device, configuration)


def _unsuited(layout: Layout, device: Device, c: Configuration) -> str | None:
    if c.raw and not _may_be_raw(layout.problem):
        return "only float32 that is not packed, in several planes and more than one step along K, is split on the way"
    if c.raw and not layout.a_is_raw:
        return "the copy engine cannot read A where it lies"
    if c.consumers > _MOST_CONSUMERS and (reason := _needs_registers(layout)):
        return f"a tile of {c.tile_m} rows has no registers for {reason}"
    if c.splits > layout.k_steps:
        return f"K has fewer than {c.splits} parts of {TILE_K}"
    extent = b_extent(layout, c)
    if layout.b.panel(extent) == 0:
        return f"{c.tile_n} columns are too few for a B that is stored by rows"
    if layout.b.tile_lines(extent) % (_SWIZZLE_LINES * c.cluster):
        return f"a tile of {c.tile_n} columns cannot be shared by {c.cluster} blocks"
    alternatives = [(layout, c)]
    if schemes := schemes_of(layout.problem):
        alternatives.append((replace(layout, scheme=schemes.wide), _for_wide(c)))
    for each, own in alternatives:
        least = _LEAST_STAGES if each.a_is_raw else max(_LEAST_STAGES, each.planes + 1)
        if shared_memory(each, device, own)[0] < least:
            return f"{least} stages do not fit in {device.shared_bytes_per_block} bytes of shared memory"
    return None


def _needs_registers(layout: Layout) -> str | None:
    """What takes more of them than 16-bit products do."""
    if layout.split is not None:
        return "float32 operands"
    if layout.finish is not None and layout.finish.residual is not None:
        return "a residual"
    is_wide = layout.out.dtype.itemsize > layout.a.dtype.itemsize
    return "float32 results in lines that are not aligned" if is_wide and not layout.out.aligned else None


def _for_wide(c: Configuration) -> Configuration:
    """How the wide scheme cuts the work where the ordinary one has this configuration."""
    return replace(c, tile_n=min(c.tile_n, _WIDEST_OF_WIDE_RAW if c.raw else _WIDEST_OF_WIDE))


def _wasteful(layout: Layout, c: Configuration) -> str | None:
    """Why a configuration that would do is not worth comparing."""
    least = _LEAST_TILE[1]
    if c.tile_n > least and c.tile_n >= 2 * layout.problem.n and layout.b.panel(least):
        return f"half of its columns would be empty, and {least} are enough"
    return None


def plan(problem: Problem, device: Device, configuration: Configuration) -> Plan:
    """The plan that uses this configuration."""
    c = configuration
    layout = Layout.of(problem, c, device)
    p = layout.problem
    stages: list[Stage] = []
    workspace_bytes = layout.workspace_bytes
    if schemes := schemes_of(problem):
        # The second pair of launches returns at once if the first one does.
        first = Runs.ALWAYS if c.raw else Runs.IF_PLANES_SUFFICE
        for scheme, runs in ((schemes.ordinary, first), (schemes.wide, Runs.IF_THEY_DO_NOT)):
            each = Layout.of(problem, c, device, scheme)
            assert each.split is not None
            own = _for_wide(c) if scheme.wide else c
            unsplit = [one for one in each.split if one.planes.is_copy]
            if unsplit:
                stages.append(planes.split_stage(unsplit, scheme, each.verdict, p.batch, device))
            stages.append(product_stage(each, device, own, runs))
            workspace_bytes = max(workspace_bytes, each.workspace_bytes)
    else:
        sources: tuple[Buffer, Buffer] = ("b", "a") if c.swap else ("a", "b")
        copies = [(each, source) for each, source in zip((layout.a, layout.b), sources, strict=True) if each.is_copy]
        if copies:
            stages.append(operand.realign_stage(copies, p.batch))
        stages.append(product_stage(layout, device, c, Runs.ALWAYS))
    if layout.out.is_partial:
        stages.append(result.reduce_stage(p, layout.out, c.splits))
    return Plan(
        problem=problem,
        device=device,
        name=f"sm90 {c}",
        stages=tuple(stages),
        cost=_cost(layout, device, c),
        tiling=_tiling(layout, device, c),
        workspace_bytes=workspace_bytes,
        splits=c.splits,
    )


def _tiling(layout: Layout, device: Device, c: Configuration) -> Tiling:
    return Tiling(
        rows=c.tile_m,
        columns=c.tile_n,
        workers="warpgroups",
        worker_rows=WGMMA_M,
        worker_columns=c.tile_n,
        units=clusters_of(layout, c) * c.cluster,
        units_at_once=clusters_at_once(layout, device, c) * c.cluster,
        parts_of_k=c.splits,
        loaders=1,
        transposed=c.swap,
    )


def packing(problem: Problem, device: Device) -> Plan | None:
    """How the packed operand of a problem becomes what products read: that is the output of this plan. None if this
    family has no use for it."""
    schemes = None if rejects(problem, device) else schemes_of(problem)
    if schemes is None:
        return None
    p = fastest_first(problem)
    source: Buffer = "a" if p.a.packed else "b"
    matrix = p.a if p.a.packed else p.b.transposed
    split = planes.Split.packed(matrix, source, p.batch, schemes.ordinary, "out", device)
    out = Matrix(torch.uint8, 1, split.end, 0, 1, (), ALIGNMENT)
    return Plan(
        problem=replace(problem, out=out, out_shape=(split.end,)),
        device=device,
        name="split",
        stages=(planes.split_stage([split], schemes.ordinary, None, p.batch, device),),
        cost=Cost(product=0.0, preparation=sm90_cost.split_clocks(split.planes.bytes(p.batch))),
        tiling=None,
    )


def _cost(layout: Layout, device: Device, c: Configuration) -> Cost:
    return sm90_cost.cost(_work(layout, c), device)


def work(problem: Problem, device: Device, configuration: Configuration) -> sm90_cost.Work:
    """What a configuration has to do, as its cost depends on it."""
    return _work(Layout.of(problem, configuration, device), configuration)


def _work(layout: Layout, c: Configuration) -> sm90_cost.Work:
    p, a, b, out = layout.problem, layout.a, layout.b, layout.out
    tiles_m, tiles_n = cluster_tiles(p, c)
    a_bytes, b_bytes = a.bytes(p.batch), b.bytes(p.batch)
    is_copied = sum(each.bytes(p.batch) for each in (a, b) if each.is_copy)
    return sm90_cost.Work(
        tile_m=c.tile_m,
        tile_n=c.tile_n,
        cluster=c.cluster,
        splits=c.splits,
        units=tiles_m * tiles_n * c.cluster * c.splits * p.batches,
        steps=math.ceil(layout.k_steps / c.splits),
        a_planes=layout.planes_of_each[0],
        b_planes=layout.planes_of_each[1],
        raw=layout.a_is_raw,
        batches=p.batches,
        loaded_columns=b_extent(layout, c),
        a_straddles=a.straddles,
        b_straddles=b.straddles,
        input_bytes=a_bytes + b_bytes,
        reread_bytes=a_bytes * (tiles_n - 1) + b_bytes * (tiles_m - 1),
        output_elements=p.m * p.n * p.batches,
        realigned_bytes=0 if layout.split else is_copied,
        is_float32=layout.split is not None,
        split_bytes=is_copied if layout.split else 0,
        stored_by_threads=not out.aligned,
        line_columns=128 // out.dtype.itemsize,
        has_residual=p.finish is not None and p.finish.residual is not None,
        reduced=out.is_partial,
    )


FAMILY: Final = Family("sm90", rejects, candidates, exclusions)
