"""The `hopper` family: Hopper's tensor cores, for 16-bit operands and for float32 as sums of 16-bit terms.

TMA reads the operands where they lie, in any of the four layouts; where their strides do not
allow that, a first launch realigns them; another splits float32 into terms. K may be split; the parts are then added
by a last launch, in order. Without a split, an element's sum of 16-bit products is the same whatever the tile: it
depends on its row and column alone.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K, Buffer
from tilesmith.core.plan import Cost, Details, Kernel, KernelLaunch, Plan, Rejection, Tiling
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels import realign, split_k_reduce
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.launch import every_kernel as every_split
from tilesmith.kernels.fp32_split.launch import full_range_split, split_launch
from tilesmith.kernels.fp32_split.terms import SCHEMES, SHORT_K, Schemes
from tilesmith.kernels.hopper import choice
from tilesmith.kernels.hopper import cost as cost_model
from tilesmith.kernels.hopper.choice import cost, excluded, for_full_range, laid_out
from tilesmith.kernels.hopper.choice import unsuited as unsuited
from tilesmith.kernels.hopper.choice import work as work
from tilesmith.kernels.hopper.constants import Runs
from tilesmith.kernels.hopper.launch import every_kernel as every_product
from tilesmith.kernels.hopper.launch import product_launch
from tilesmith.kernels.hopper.layout import Configuration as Configuration
from tilesmith.kernels.hopper.layout import (
    Layout,
    clusters_at_once,
    clusters_of,
    fastest_first,
    schemes_of,
    sources_of,
)
from tilesmith.kernels.hopper.tiles import MAX_SPLIT_K, MIN_TILE, configurations
from tilesmith.kernels.hopper.traits import WGMMA_M
from tilesmith.kernels.operand import round_up

_CAPABILITY: Final = (9, 0)
_MIN_K: Final = 33  # torch rounds shorter sums less often than terms have bits for
_MAX_FEW: Final = 16  # rows or columns
_INT_MAX: Final = 2**31 - 1


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if device.capability != _CAPABILITY:
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
    m, n, k, batches, schemes = problem.m, problem.n, problem.k, problem.batches, schemes_of(problem)
    if schemes is not None and problem.accuracy == "fp32" and k < _MIN_K:
        return "its terms have too few bits for sums that are so short"
    if problem.accuracy == "fp32" and problem.a.dtype != problem.b.dtype and _is_rarely_rounded(m, n, k):
        return (
            "its terms have too few bits for a vector, or short sums of few rows or columns: torch rounds these rarely"
        )
    if k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    if _repeats(problem.a) or _repeats(problem.b):
        return "an operand repeats its rows or columns, and would have to be written out"
    tiles = -(-max(m, n) // MIN_TILE[1]) * -(-min(m, n) // MIN_TILE[0])
    counted = max(m, n, k, tiles * batches * MAX_SPLIT_K)
    if schemes is not None:
        depth, scales = schemes.full_range.stored * round_up(k, TILE_K), batches * terms.scale_pitch(max(m, n))
        counted = max(counted, depth, scales)
    if counted > _INT_MAX:
        return "its sizes cannot be counted with 32 bits"
    return None


def _is_rarely_rounded(m: int, n: int, k: int) -> bool:
    """Whether torch sums such a product in many short chains. Of two float32 operands the other families do these."""
    return min(m, n) == 1 or (min(m, n) <= _MAX_FEW and k <= SHORT_K)


def _repeats(matrix: Matrix) -> bool:
    return (matrix.rows > 1 and matrix.row_stride == 0) or (matrix.columns > 1 and matrix.column_stride == 0)


def cheapest(problem: Problem, device: Device, must_swap: bool | None = None) -> Candidate | None:
    """The plan that is expected to take the least time; None if no configuration suits the product. `must_swap`: that
    swap_ab must be so; None if either will do."""
    c, cycles = choice.cheapest(problem, device, must_swap)
    return None if c is None else Candidate(f"hopper {c}", cycles, partial(plan, problem, device, c, cycles))


def candidates(problem: Problem, device: Device, must_swap: bool | None = None) -> Iterator[Candidate]:
    """A plan for every configuration that suits the product."""
    for c, layout in laid_out(problem, device, must_swap):
        if excluded(layout, device, c) is None:
            cycles = cost(layout, device, c).cycles
            yield Candidate(f"hopper {c}", cycles, partial(plan, problem, device, c, cycles))


def exclusions(problem: Problem, device: Device, must_swap: bool | None = None) -> Iterator[Rejection]:
    """The configurations that do not suit it, each with its reason."""
    for c, layout in laid_out(problem, device, must_swap):
        if reason := excluded(layout, device, c):
            yield Rejection(f"hopper {c}", reason)


def plan(problem: Problem, device: Device, configuration: Configuration, cycles: float | None = None) -> Plan:
    """The plan that uses this configuration. `cycles`: what it is expected to take, if that is known."""
    c = configuration
    layout = Layout.of(problem, c, device)
    p = layout.problem
    launches: list[KernelLaunch] = []
    workspace_bytes = layout.workspace_bytes
    if schemes := schemes_of(problem):
        launches, full_range = _float32_launches(layout, schemes, device, c)
        workspace_bytes = max(workspace_bytes, full_range.workspace_bytes)
    else:
        pairs = zip((layout.a, layout.b), sources_of(c.swap_ab), strict=True)
        copies = [(each, source) for each, source in pairs if each.is_copy]
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
        cycles=cost(layout, device, c).cycles if cycles is None else cycles,
        details=partial(_details, layout, device, c),
        workspace_bytes=workspace_bytes,
        split_k=c.split_k,
    )


def _float32_launches(
    layout: Layout, schemes: Schemes, device: Device, c: Configuration
) -> tuple[list[KernelLaunch], Layout]:
    """The launches that split and multiply ordinary values, and those for all others, which return at once if the first
    ones do; and the layout that these have. Most of their parameters are the same."""
    batch, full_range = layout.problem.batch, layout.with_terms_of(schemes.full_range, device)
    assert layout.split is not None and full_range.split is not None
    launches: list[KernelLaunch] = []
    unsplit = [each for each in layout.split if each.terms.is_copy]  # what is packed has ordinary terms already
    if unsplit:
        launches.append(split_launch(unsplit, schemes.ordinary, layout.range_check, batch, device))
    product = product_launch(layout, device, c, Runs.ALWAYS if c.rs else Runs.IF_IN_RANGE)
    launches.append(product)
    if len(unsplit) == len(full_range.split):
        launches.append(full_range_split(launches[0], full_range.split, schemes.full_range))
    else:
        launches.append(split_launch(full_range.split, schemes.full_range, layout.range_check, batch, device))
    own = for_full_range(c)
    launches.append(product_launch(full_range, device, own, Runs.IF_OUT_OF_RANGE, ordinary=product))
    return launches, full_range


def _details(layout: Layout, device: Device, c: Configuration) -> Details:
    tiling = Tiling(
        rows=c.tile_m,
        columns=c.tile_n,
        workers="warpgroups",
        worker_rows=WGMMA_M,
        worker_columns=c.tile_n,
        units=clusters_of(layout, c) * c.cluster,
        units_at_once=clusters_at_once(layout.problem, device, layout.tile(device, c)) * c.cluster,
        parts_of_k=c.split_k,
        loaders=1,
        swap_ab=c.swap_ab,
    )
    return Details(cost(layout, device, c), tiling)


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
    preparation = Cost(product=0.0, preparation=cost_model.split_clocks(split.terms.bytes(p.batch), device))
    out = Matrix(torch.uint8, 1, split.end, 0, 1, (), ALIGNMENT)
    return Plan(
        problem=problem._replace(out=out, out_shape=(split.end,)),
        device=device,
        family="hopper",
        name="split",
        launches=(split_launch([split], schemes.ordinary, None, p.batch, device),),
        cycles=preparation.cycles,
        details=partial(Details, preparation, None),
    )


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    if device.capability != _CAPABILITY:
        return
    half, single = (_sample(dtype, device) for dtype in (torch.bfloat16, torch.float32))
    declared = {
        is_fp32: (plan.product.kernel.parameters, plan.product.kernel.headers)
        for is_fp32, plan in ((False, half), (True, single))
    }
    yield from every_product(device, declared)
    yield from every_split(single.launches[0].kernel.parameters)
    yield from realign.kernels()
    yield from split_k_reduce.kernels()


def _sample(dtype: torch.dtype, device: Device) -> Plan:
    """A plan that has a launch before the one that multiplies: it shows how C++ declares parameters."""
    a = torch.empty(64, 65, dtype=dtype, device="meta")
    return plan(Problem.of(a, a.T), device, Configuration(64, 64))
