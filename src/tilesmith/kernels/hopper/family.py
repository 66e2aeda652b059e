"""The `hopper` family: Hopper's tensor cores, for 16-bit operands and for float32 as sums of 16-bit terms.

TMA reads the operands where they lie, in any of the four layouts; where their strides do not
allow that, a first launch realigns them; another splits float32 into terms. K may be split; the parts are then added
by a last launch, in order. Without a split, an element's sum of 16-bit products is the same whatever the tile: it
depends on its row and column alone.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K, Buffer
from tilesmith.core.plan import Cost, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels import realign, split_k_reduce
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.launch import split_launch
from tilesmith.kernels.fp32_split.terms import SCHEMES
from tilesmith.kernels.hopper import cost as cost_model
from tilesmith.kernels.hopper.constants import Runs
from tilesmith.kernels.hopper.launch import product_launch
from tilesmith.kernels.hopper.layout import (
    WGMMA_M,
    Layout,
    b_extent,
    cluster_tiles,
    clusters_at_once,
    clusters_of,
    fastest_first,
    schemes_of,
    shared_memory,
)
from tilesmith.kernels.hopper.layout import Configuration as Configuration
from tilesmith.kernels.hopper.tiles import MAX_SPLIT_K, MIN_TILE, configurations, may_be_rs
from tilesmith.kernels.operand import round_up

_MAX_CONSUMERS: Final = 2  # whose threads have registers for anything
_MAX_RS_FULL_RANGE_TILE_N: Final = 64  # and terms in registers
_MAX_FULL_RANGE_TILE_N: Final = 96  # columns of a tile, where there are three sets of sums
_MIN_K: Final = 33  # torch rounds shorter sums less often than terms have bits for
_MIN_STAGES: Final = 2
_SWIZZLE_LINES: Final = 8  # the swizzle's pattern repeats after these
_INT_MAX: Final = 2**31 - 1


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if device.capability != (9, 0):
        return f"needs compute capability 9.0, and {device.name} has {'.'.join(map(str, device.capability))}"
    has_float32 = torch.float32 in (problem.a.dtype, problem.b.dtype)
    if has_float32 and problem.accuracy not in SCHEMES:
        return f"does not sum as {problem.accuracy!r} asks for"
    if problem.a.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"multiplies float16, bfloat16 and float32, not {str(problem.a.dtype).removeprefix('torch.')}"
    return None


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    if schemes_of(problem) is not None and problem.accuracy == "fp32" and problem.k < _MIN_K:
        return "its terms have too few bits for sums that are so short"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    if any(_repeats(matrix) for matrix in (problem.a, problem.b)):
        return "an operand repeats its rows or columns, and would have to be written out"
    tiles = math.ceil(max(problem.m, problem.n) / MIN_TILE[1]) * math.ceil(min(problem.m, problem.n) / MIN_TILE[0])
    counted = [problem.m, problem.n, problem.k, tiles * problem.batches * MAX_SPLIT_K]
    if schemes := schemes_of(problem):
        counted.append(schemes.full_range.stored * round_up(problem.k, TILE_K))
        counted.append(problem.batches * terms.scale_pitch(max(problem.m, problem.n)))
    if max(counted) > _INT_MAX:
        return "its sizes cannot be counted with 32 bits"
    return None


def _repeats(matrix: Matrix) -> bool:
    return (matrix.rows > 1 and matrix.row_stride == 0) or (matrix.columns > 1 and matrix.column_stride == 0)


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every configuration that suits the product."""
    for c, layout in _laid_out(problem, device):
        if _unsuited(layout, device, c) is None and _wasteful(layout, c) is None:
            yield Candidate(f"hopper {c}", _cost(layout, device, c), partial(plan, problem, device, c))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The configurations that do not suit it, each with its reason."""
    for c, layout in _laid_out(problem, device):
        if reason := _unsuited(layout, device, c) or _wasteful(layout, c):
            yield Rejection(f"hopper {c}", reason)


def _laid_out(problem: Problem, device: Device) -> Iterator[tuple[Configuration, Layout]]:
    layouts: dict[tuple[bool, bool, int], Layout] = {}
    for c in configurations(problem, device):
        key = (c.swap_ab, c.rs, c.split_k)
        if key not in layouts:
            layouts[key] = Layout.of(problem, c, device)
        yield c, layouts[key]


def unsuited(problem: Problem, device: Device, configuration: Configuration) -> str | None:
    """Why this configuration cannot do a problem that the family can do; None if it can."""
    return _unsuited(Layout.of(problem, configuration, device), device, configuration)


def _unsuited(layout: Layout, device: Device, c: Configuration) -> str | None:
    if c.rs and not may_be_rs(layout.problem):
        return "only float32 that is not packed, in several terms and more than one step along K, is split on the way"
    if c.rs and not layout.a_is_rs:
        return "TMA cannot read A where it lies"
    if c.consumers > _MAX_CONSUMERS and (reason := _needs_registers(layout)):
        return f"a tile of {c.tile_m} rows has no registers for {reason}"
    if c.split_k > layout.k_steps:
        return f"K has fewer than {c.split_k} parts of {TILE_K}"
    extent = b_extent(layout, c)
    if layout.b.atom_width(extent) == 0:
        return f"{c.tile_n} columns are too few for a B that is stored by rows"
    if layout.b.tile_lines(extent) % (_SWIZZLE_LINES * c.cluster):
        return f"a tile of {c.tile_n} columns cannot be shared by {c.cluster} blocks"
    alternatives = [(layout, c)]
    if schemes := schemes_of(layout.problem):
        alternatives.append((replace(layout, scheme=schemes.full_range), _for_full_range(c)))
    for each, own in alternatives:
        least = _MIN_STAGES if each.a_is_rs else max(_MIN_STAGES, each.terms + 1)
        if shared_memory(each, device, own)[0] < least:
            return f"{least} stages do not fit in {device.shared_bytes_per_block} bytes of shared memory"
    return None


def _needs_registers(layout: Layout) -> str | None:
    """What takes more of them than 16-bit products do."""
    if layout.split is not None:
        return "float32 operands"
    if layout.epilogue is not None and layout.epilogue.residual is not None:
        return "a residual"
    is_wide = layout.out.dtype.itemsize > layout.a.dtype.itemsize
    return "float32 results in lines that are not aligned" if is_wide and not layout.out.aligned else None


def _for_full_range(c: Configuration) -> Configuration:
    """How the bf16x3 scheme cuts the work where the ordinary one has this configuration."""
    return replace(c, tile_n=min(c.tile_n, _MAX_RS_FULL_RANGE_TILE_N if c.rs else _MAX_FULL_RANGE_TILE_N))


def _wasteful(layout: Layout, c: Configuration) -> str | None:
    """Why a configuration that would do is not worth comparing."""
    least = MIN_TILE[1]
    if c.tile_n > least and c.tile_n >= 2 * layout.problem.n and layout.b.atom_width(least):
        return f"half of its columns would be empty, and {least} are enough"
    return None


def plan(problem: Problem, device: Device, configuration: Configuration) -> Plan:
    """The plan that uses this configuration."""
    c = configuration
    layout = Layout.of(problem, c, device)
    p = layout.problem
    launches: list[KernelLaunch] = []
    workspace_bytes = layout.workspace_bytes
    if schemes := schemes_of(problem):
        # The second pair of launches returns at once if the first one does.
        first = Runs.ALWAYS if c.rs else Runs.IF_IN_RANGE
        for scheme, runs in ((schemes.ordinary, first), (schemes.full_range, Runs.IF_OUT_OF_RANGE)):
            each = Layout.of(problem, c, device, scheme)
            assert each.split is not None
            own = _for_full_range(c) if scheme.full_range else c
            unsplit = [one for one in each.split if one.terms.is_copy]
            if unsplit:
                launches.append(split_launch(unsplit, scheme, each.range_check, p.batch, device))
            launches.append(product_launch(each, device, own, runs))
            workspace_bytes = max(workspace_bytes, each.workspace_bytes)
    else:
        sources: tuple[Buffer, Buffer] = ("b", "a") if c.swap_ab else ("a", "b")
        copies = [(each, source) for each, source in zip((layout.a, layout.b), sources, strict=True) if each.is_copy]
        if copies:
            launches.append(realign.launch(copies, p.batch))
        launches.append(product_launch(layout, device, c))
    if layout.out.is_partial:
        launches.append(split_k_reduce.launch(p, layout.out, c.split_k))
    return Plan(
        problem=problem,
        device=device,
        family="hopper",
        name=f"hopper {c}",
        launches=tuple(launches),
        cost=_cost(layout, device, c),
        tiling=_tiling(layout, device, c),
        workspace_bytes=workspace_bytes,
        split_k=c.split_k,
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
        parts_of_k=c.split_k,
        loaders=1,
        swap_ab=c.swap_ab,
    )


def with_configuration(other: Plan, problem: Problem) -> Plan | None:
    """The plan for this problem that has the configuration of another plan; None if it cannot have it."""
    if rejects(problem, other.device):
        return None
    known = (c for c in configurations(other.problem, other.device) if f"hopper {c}" == other.name)
    c = next((c for c in known if unsuited(problem, other.device, c) is None), None)
    return None if c is None else plan(problem, other.device, c)


def packing(problem: Problem, device: Device) -> Plan | None:
    """How the packed operand of a problem becomes what products read: that is the output of this plan. None if this
    family has no use for it."""
    schemes = None if rejects(problem, device) else schemes_of(problem)
    if schemes is None:
        return None
    p = fastest_first(problem)
    source: Buffer = "a" if p.a.packed else "b"
    matrix = p.a if p.a.packed else p.b.transposed
    split = terms.Split.packed(matrix, source, p.batch, schemes.ordinary, "out", device)
    out = Matrix(torch.uint8, 1, split.end, 0, 1, (), ALIGNMENT)
    return Plan(
        problem=replace(problem, out=out, out_shape=(split.end,)),
        device=device,
        family="hopper",
        name="split",
        launches=(split_launch([split], schemes.ordinary, None, p.batch, device),),
        cost=Cost(product=0.0, preparation=cost_model.split_clocks(split.terms.bytes(p.batch), device)),
        tiling=None,
    )


def _cost(layout: Layout, device: Device, c: Configuration) -> Cost:
    return cost_model.cost(_work(layout, c), device)


def work(problem: Problem, device: Device, configuration: Configuration) -> cost_model.Work:
    """What a configuration has to do, as its cost depends on it."""
    return _work(Layout.of(problem, configuration, device), configuration)


def _work(layout: Layout, c: Configuration) -> cost_model.Work:
    p, a, b, out = layout.problem, layout.a, layout.b, layout.out
    tiles_m, tiles_n = cluster_tiles(p, c)
    a_bytes, b_bytes = a.bytes(p.batch), b.bytes(p.batch)
    is_copied = sum(each.bytes(p.batch) for each in (a, b) if each.is_copy)
    return cost_model.Work(
        tile_m=c.tile_m,
        tile_n=c.tile_n,
        cluster=c.cluster,
        split_k=c.split_k,
        units=tiles_m * tiles_n * c.cluster * c.split_k * p.batches,
        steps=math.ceil(layout.k_steps / c.split_k),
        a_terms=layout.terms_of_each[0],
        b_terms=layout.terms_of_each[1],
        rs=layout.a_is_rs,
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
        has_residual=p.epilogue is not None and p.epilogue.residual is not None,
        reduced=out.is_partial,
    )
