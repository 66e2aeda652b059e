"""The `sm90` family: Hopper's tensor cores, for 16-bit operands and for float32 as sums of 16-bit planes.

The copy engine reads the operands where they lie, in any of the four layouts; where their strides do not
allow that, a first launch realigns them; another splits float32 into planes. K may be split; the parts are then added
by a last launch, in order.
Without a split, an element's sum is the same whatever the tile: it depends on its row and column alone.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels import operand, planes, result, sm90_cost
from tilesmith.kernels.family import Candidate, Family
from tilesmith.kernels.operand import MOST_BATCH_DIMENSIONS, TILE_K, WORKSPACE_ALIGNMENT, Operand, round_up
from tilesmith.kernels.planes import SCHEMES, Scales, Scheme, Schemes, Split
from tilesmith.kernels.result import CUDA_TYPES, Result, Staging, Store
from tilesmith.plan import Address, Buffer, Constant, Kernel, Plan, Rejection, Stage, Wgmma
from tilesmith.problem import Matrix, Problem

# Rows are 64 for each consumer.
TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (256, 224, 192, 160, 128, 96, 64, 32)),
    *((64, n) for n in (256, 192, 128, 96, 64, 32, 16, 8)),
)
_WIDEST_OF_WIDE: Final = 96  # columns of a tile, where there are three sets of sums
_LEAST_K: Final = 33  # shorter sums are rounded less often by the CUDA cores than planes have bits for
_SHORT_K: Final = 512  # in sums up to this, what two planes leave out may be more than what torch rounds off
# Where there are two sets of sums.
PROMOTED_TILES: Final[tuple[tuple[int, int], ...]] = (
    *((128, n) for n in (192, 176, 160, 144, 128, 112, 96, 64, 32)),
    *((64, n) for n in (192, 128, 96, 64, 32, 16, 8)),
)
_LEAST_TILE: Final = (64, 8)
_LEAST_PANEL: Final = 16  # columns of a tile that any B can have
_FEW_ROWS: Final = 256  # up to these the transposed product is considered
_LEAST_SPLIT_STEPS: Final = 4  # steps along K that a split is worth
_MOST_SPLITS: Final = 128
_LEAST_CLUSTER_STEPS: Final = 4  # steps along K that are worth waiting for a neighbour

_WGMMA_M: Final = 64
_OPERAND_BYTES: Final = 2
_LEAST_STAGES: Final = 2
_MOST_STAGES: Final = 24
_BARRIER_BYTES: Final = 16  # of a stage
_SCALE_BYTES: Final = 4  # of a column
_SWIZZLE_LINES: Final = 8  # the swizzle's pattern repeats after these
_LEAST_SHARE_OF_SMS: Final = 0.9  # worth it for keeping B
_INT_MAX: Final = 2**31 - 1

# Registers of a producer's and of a consumer's thread. They come from the pool of a block that started with
# registers_per_sm / threads for each.
_PRODUCER_REGISTERS: Final = 40
_CONSUMER_REGISTERS: Final = 232


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the work is cut."""

    tile_m: int
    tile_n: int
    cluster: int = 1  # tiles one below the other that share columns of B
    splits: int = 1
    swap: bool = False  # compute the transposed product: few rows become few columns

    def __str__(self) -> str:
        parts = [f"{self.tile_m}x{self.tile_n}"]
        if self.cluster > 1:
            parts.append(f"cluster {self.cluster}")
        if self.splits > 1:
            parts.append(f"split {self.splits}")
        if self.swap:
            parts.append("transposed")
        return " ".join(parts)

    @property
    def consumers(self) -> int:
        return self.tile_m // _WGMMA_M

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * 128


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if device.capability != (9, 0):
        return f"needs compute capability 9.0, and {device.name} has {'.'.join(map(str, device.capability))}"
    if problem.a.dtype == torch.float32 and problem.accuracy not in SCHEMES:
        return f"does not sum as {problem.accuracy!r} asks for"
    if problem.a.dtype == torch.float32 and problem.accuracy == "fp32" and problem.k < _LEAST_K:
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
    if schemes := _schemes(problem):
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
        for tile_m, tile_n in PROMOTED_TILES if _promotes(problem) else TILES:
            if tile_n >= 2 * max(n, _LEAST_PANEL) or (tile_m > _WGMMA_M and m <= _WGMMA_M):
                continue  # at least half of it would be empty
            tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * problem.batches
            for splits in _splits(tiles, k_steps, device):
                for cluster in (1, 2) if m > tile_m and k_steps >= splits * _LEAST_CLUSTER_STEPS else (1,):
                    yield Configuration(tile_m, tile_n, cluster, splits, swap)


def _schemes(problem: Problem) -> Schemes | None:
    """How float32 operands become 16-bit ones; None if they are 16-bit ones already."""
    return SCHEMES[problem.accuracy] if problem.a.dtype == torch.float32 else None


def _promotes(problem: Problem) -> bool:
    schemes = _schemes(problem)
    return schemes is not None and schemes.ordinary.planes > 1 and problem.k > TILE_K


def _splits(tiles: int, k_steps: int, device: Device) -> Iterator[int]:
    """One, and what fills the SMs once or twice."""
    most = min(k_steps // _LEAST_SPLIT_STEPS, _MOST_SPLITS)
    once, twice = (min(rounds * device.sm_count // tiles, most) for rounds in (1, 2))
    yield 1
    if once > 1:
        yield once
    if twice > max(once, 2):
        yield twice


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every configuration that suits the product."""
    for c, layout in _laid_out(problem, device):
        if _unsuited(layout, device, c) is None and _wasteful(layout, c) is None:
            yield Candidate(f"sm90 {c}", _cycles(layout, device, c), partial(plan, problem, device, c))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """The configurations that do not suit it, each with its reason."""
    for c, layout in _laid_out(problem, device):
        if reason := _unsuited(layout, device, c) or _wasteful(layout, c):
            yield Rejection(f"sm90 {c}", reason)


def _laid_out(problem: Problem, device: Device) -> Iterator[tuple[Configuration, "_Layout"]]:
    layouts: dict[tuple[bool, int], _Layout] = {}
    for c in configurations(problem, device):
        key = (c.swap, c.splits)
        if key not in layouts:
            layouts[key] = _Layout.of(problem, *key, device)
        yield c, layouts[key]


def unsuited(problem: Problem, device: Device, configuration: Configuration) -> str | None:
    """Why this configuration cannot do a problem that the family can do; None if it can."""
    layout = _Layout.of(problem, configuration.swap, configuration.splits, device)
    return _unsuited(layout, device, configuration)


def _unsuited(layout: "_Layout", device: Device, c: Configuration) -> str | None:
    if c.splits > layout.k_steps:
        return f"K has fewer than {c.splits} parts of {TILE_K}"
    extent = _b_extent(layout, c)
    if layout.b.panel(extent) == 0:
        return f"{c.tile_n} columns are too few for a B that is stored by rows"
    if layout.b.tile_lines(extent) % (_SWIZZLE_LINES * c.cluster):
        return f"a tile of {c.tile_n} columns cannot be shared by {c.cluster} blocks"
    alternatives = [(layout, c)]
    if schemes := _schemes(layout.problem):
        alternatives.append((replace(layout, scheme=schemes.wide), _for_wide(c)))
    for each, own in alternatives:
        least = max(_LEAST_STAGES, each.planes + 1)
        if _shared(each, device, own)[0] < least:
            return f"{least} stages do not fit in {device.shared_bytes_per_block} bytes of shared memory"
    return None


def _for_wide(c: Configuration) -> Configuration:
    """How the wide scheme cuts the work where the ordinary one has this configuration."""
    return replace(c, tile_n=min(c.tile_n, _WIDEST_OF_WIDE))


def _wasteful(layout: "_Layout", c: Configuration) -> str | None:
    """Why a configuration that would do is not worth comparing."""
    least = _LEAST_TILE[1]
    if c.tile_n > least and c.tile_n >= 2 * layout.problem.n and layout.b.panel(least):
        return f"half of its columns would be empty, and {least} are enough"
    return None


def plan(problem: Problem, device: Device, configuration: Configuration) -> Plan:
    """The plan that uses this configuration."""
    c = configuration
    layout = _Layout.of(problem, c.swap, c.splits, device)
    p = layout.problem
    stages: list[Stage] = []
    workspace_bytes = layout.workspace_bytes
    if schemes := _schemes(problem):
        # The second pair of launches returns at once if the first one does.
        for scheme, runs in ((schemes.ordinary, _Runs.IF_PLANES_SUFFICE), (schemes.wide, _Runs.IF_THEY_DO_NOT)):
            each = _Layout.of(problem, c.swap, c.splits, device, scheme)
            assert each.split is not None
            own = _for_wide(c) if scheme.wide else c
            stages.append(planes.split_stage(each.split, scheme, each.census, p.batch, device))
            stages.append(_product_stage(each, device, own, runs))
            workspace_bytes = max(workspace_bytes, each.workspace_bytes)
    else:
        sources: tuple[Buffer, Buffer] = ("b", "a") if c.swap else ("a", "b")
        copies = [(each, source) for each, source in zip((layout.a, layout.b), sources, strict=True) if each.is_copy]
        if copies:
            stages.append(operand.realign_stage(copies, p.batch, device))
        stages.append(_product_stage(layout, device, c, _Runs.ALWAYS))
    if layout.out.is_partial:
        stages.append(result.reduce_stage(p, layout.out, c.splits))
    return Plan(
        problem=problem,
        device=device,
        name=f"sm90 {c}",
        stages=tuple(stages),
        cycles=_cycles(layout, device, c),
        workspace_bytes=workspace_bytes,
        splits=c.splits,
    )


class _Runs(IntEnum):
    """enum Runs of sm90.cu."""

    ALWAYS = 0
    IF_PLANES_SUFFICE = 1
    IF_THEY_DO_NOT = 2


class _Scale(IntEnum):
    """enum Scale of scale.cuh."""

    NONE = 0
    FACTORS = 1
    EXPONENTS = 2


@dataclass(frozen=True, slots=True)
class _Layout:
    """The product as a kernel sees it: its operands and its result in memory."""

    problem: Problem  # transposed if asked for, the fastest batch dimension first
    a: Operand  # M x K
    b: Operand  # N x K
    out: Result
    workspace_bytes: int
    scheme: Scheme | None = None
    split: tuple[Split, Split] | None = None  # A and B, if they are planes
    census: int = 0  # offset in the workspace

    @classmethod
    def of(cls, problem: Problem, swap: bool, splits: int, device: Device, scheme: Scheme | None = None) -> "_Layout":
        """`scheme`: of float32 operands, the ordinary one if none is given."""
        p = _fastest_first(problem.transposed if swap else problem)
        end = 0
        out = result.direct(p.out, p.batch) if splits == 1 else None
        if out is None:
            out = result.partial(p.out, splits * p.batches, end)
            end = round_up(out.bytes, WORKSPACE_ALIGNMENT)
        sources: tuple[Buffer, Buffer] = ("b", "a") if swap else ("a", "b")
        if schemes := _schemes(problem):
            scheme = scheme or schemes.ordinary
            census, end = end, round_up(end + planes.census_bytes(device), WORKSPACE_ALIGNMENT)
            a_scales = Scales.of(p.a, p.batch, end)
            b_scales = Scales.of(p.b.transposed, p.batch, a_scales.end)
            a_split = Split.of(p.a, sources[0], p.batch, scheme, a_scales, b_scales.end)
            b_split = Split.of(p.b.transposed, sources[1], p.batch, scheme, b_scales, a_split.end)
            return cls(p, a_split.planes, b_split.planes, out, b_split.end, scheme, (a_split, b_split), census)
        a = operand.direct(p.a, sources[0])
        if a is None:
            a, end = operand.realigned(p.a, p.batch, end)
        b = operand.direct(p.b.transposed, sources[1])
        if b is None:
            b, end = operand.realigned(p.b.transposed, p.batch, end)
        return cls(p, a, b, out, end)

    @property
    def k_steps(self) -> int:
        return math.ceil(self.problem.k / TILE_K)

    @property
    def planes(self) -> int:
        """Of which the kernel makes products."""
        return self.scheme.planes if self.scheme else 1

    @property
    def scales(self) -> tuple[Scales, ...]:
        return tuple(each.scales for each in self.split or ())

    @property
    def scale(self) -> _Scale:
        if self.scheme is None:
            return _Scale.NONE
        return _Scale.EXPONENTS if self.scheme.wide else _Scale.FACTORS


def _fastest_first(problem: Problem) -> Problem:
    a, b, out = (replace(x, batch_strides=x.batch_strides[::-1]) for x in (problem.a, problem.b, problem.out))
    return replace(problem, batch=problem.batch[::-1], a=a, b=b, out=out)


def _product_stage(layout: _Layout, device: Device, c: Configuration, runs: _Runs) -> Stage:
    p, a, b, out = layout.problem, layout.a, layout.b, layout.out
    stages, shared_bytes = _shared(layout, device, c)
    staging = _staging(layout, c)
    tiles = math.prod(_cluster_tiles(p, c)) * c.splits * p.batches
    b_stays = _b_stays(layout, device, c)
    at_once = _blocks_where_b_stays(p, device, c) if b_stays else device.sm_count // c.cluster
    clusters = min(tiles, at_once)
    arguments = _arguments(layout, device, c)
    constants: dict[str, Constant] = {
        "Output": CUDA_TYPES[out.dtype],
        "tile_m": c.tile_m,
        "tile_n": c.tile_n,
        "b_extent": _b_extent(layout, c),
        "stages": stages,
        "planes": layout.planes,
        "scale": int(layout.scale),
        "runs": int(runs),
        "widest_promoted": PROMOTED_TILES[0][1],
        "with_least_product": layout.planes == 2 and p.k <= _SHORT_K,
        "a_slabs": planes.slabs(a.matrix, p.batch) if layout.split else 1,
        "b_slabs": planes.slabs(b.matrix, p.batch) if layout.split else 1,
        "cluster": c.cluster,
        "b_stays": b_stays,
        "a_mn_major": a.mn_major,
        "b_mn_major": b.mn_major,
        "batch_rank": len(p.batch),
        "out_batch_rank": len(out.batch),
        "out_along_m": out.along_m,
        "out_store": int(staging.store),
        "out_is_partial": out.is_partial,
        "out_by_warp": staging.by_warp,
        "chunk": staging.chunk,
        "store_buffers": staging.buffers,
        "store_waits": out.dtype.itemsize == _OPERAND_BYTES and tiles > clusters,
        "threads": c.threads,
        "producer_registers": _PRODUCER_REGISTERS,
        "consumer_registers": _CONSUMER_REGISTERS,
        "shared_bytes": shared_bytes,
        "parameter_bytes": len(arguments),
    }
    maps = [a.tensor_map(0, c.tile_m, 1, p.batch), b.tensor_map(128, _b_extent(layout, c), c.cluster, p.batch)]
    addresses = []
    if staging.store is Store.BOXES:
        maps.append(out.tensor_map(256, staging))
    else:
        addresses.append(Address(_OUT_ADDRESS, out.buffer, out.offset))
    if layout.split:
        offsets = (
            *(s.wide_exponents if layout.scale is _Scale.EXPONENTS else s.factors for s in layout.scales),
            *(layout.census, layout.census + planes.verdict_offset(device)),
        )
        addresses += (Address(at, "workspace", offset) for at, offset in zip(_SCALE_ADDRESSES, offsets, strict=True))
    return Stage(
        kernel=Kernel(
            "sm90",
            "kernels/sm90.cu",
            tuple(constants.items()),
            shared_bytes,
            Wgmma(c.tile_n, a.dtype, a.mn_major, b.mn_major),
        ),
        grid=(clusters * c.cluster, 1, 1),
        threads=c.threads,
        arguments=arguments,
        addresses=tuple(addresses),
        tensor_maps=tuple(maps),
        cluster=c.cluster,
        awaits_predecessor=True,
    )


def _shared(layout: _Layout, device: Device, c: Configuration) -> tuple[int, int]:
    """The stages that fit in a block's shared memory, and the bytes that they and the staged output take."""
    staging = _staging(layout, c)
    staged = c.tile_m * staging.buffers * (staging.chunk * layout.out.dtype.itemsize + staging.padding)
    if layout.scale is not _Scale.NONE:
        staged += c.consumers * c.tile_n * _SCALE_BYTES
    a_bytes, b_bytes = c.tile_m * TILE_K * _OPERAND_BYTES, _b_extent(layout, c) * TILE_K * _OPERAND_BYTES
    stage, once = a_bytes + b_bytes + _BARRIER_BYTES, staged
    if _b_stays(layout, device, c):
        stage, once = stage - b_bytes, once + layout.planes * b_bytes
    stages = min((device.shared_bytes_per_block - once) // stage, _MOST_STAGES)
    # Loading many short tiles ahead would put off the stores of the first ones.
    if _only_stores(layout):
        stages = min(stages, 3 * layout.planes)
    return stages, stages * stage + once


def _staging(layout: _Layout, c: Configuration) -> Staging:
    return layout.out.staging(c.tile_n, by_rows=_only_stores(layout), lean=layout.planes > 1 and layout.k_steps > 1)


def _b_extent(layout: _Layout, c: Configuration) -> int:
    """The columns of B that are loaded for a tile: more than the tile has, if that makes lines of full width."""
    if layout.planes > 1 and layout.b.mn_major and c.tile_n > TILE_K:
        return round_up(c.tile_n, TILE_K)
    return c.tile_n


def _only_stores(layout: _Layout) -> bool:
    """K is one step: the output's way to memory decides."""
    return layout.k_steps == 1 and not layout.out.is_partial


def _b_stays(layout: _Layout, device: Device, c: Configuration) -> bool:
    """A block keeps to its columns, and loads their tile of B once: less to read where the store decides."""
    p = layout.problem
    if not _only_stores(layout) or c.cluster > 1 or p.batches > 1 or layout.scale is _Scale.EXPONENTS:
        return False
    return _blocks_where_b_stays(p, device, c) >= _LEAST_SHARE_OF_SMS * device.sm_count


def _blocks_where_b_stays(problem: Problem, device: Device, c: Configuration) -> int:
    """A multiple of the tiles of a panel side by side, and their raster has bands of one: so a block's column is the
    same in all rows (scheduler.cuh)."""
    panel = _panel(problem, device, c)
    return device.sm_count // panel * panel


def _panel(problem: Problem, device: Device, c: Configuration) -> int:
    """Columns of tiles that fit into the GPU at once, if they are parts of equal size."""
    _, tiles_n = _cluster_tiles(problem, c)
    parts = math.ceil(tiles_n / device.sm_count)
    return tiles_n // parts if tiles_n % parts == 0 else tiles_n


def _cluster_tiles(problem: Problem, c: Configuration) -> tuple[int, int]:
    return math.ceil(problem.m / (c.tile_m * c.cluster)), math.ceil(problem.n / c.tile_n)


def _band(layout: _Layout) -> int:
    """Clusters of tile rows that share a band of the raster. Memory prefers to be written along rows."""
    return 1 if _only_stores(layout) else 8


# In struct Parameters of sm90.cu.
_OUT_ADDRESS: Final = 384
_SCALE_ADDRESSES: Final = (512, 536, 560, 568)  # of A, of B; the census and the verdict


def _arguments(layout: _Layout, device: Device, c: Configuration) -> bytes:
    """struct Parameters of sm90.cu, which asserts its size."""
    p, out = layout.problem, layout.out
    padding = (0,) * (MOST_BATCH_DIMENSIONS - len(p.batch))
    out_strides = (0,) * len(p.batch) if out.is_partial else out.batch_strides
    scales = [(each.scales.pitch, *each.matrix_steps, *padding) for each in layout.split or ()] or [(0, 0, 0, 0)] * 2
    fields = struct.pack(
        "<384x2q2i3q20iq4iq4i2qi",
        *(0, out.line_stride, out.lines, out.length),
        *(*out_strides, *padding),
        *(
            *_cluster_tiles(p, c),
            c.splits,
            p.batches,
            *divmod(layout.k_steps, c.splits),
            _band(layout),
            _panel(p, device, c),
        ),
        *(*p.batch, *padding),
        *(*(int(stride != 0) for stride in layout.a.batch_strides), *padding),
        *(*(int(stride != 0) for stride in layout.b.batch_strides), *padding),
        *(p.k, layout.a.plane_depth, 0),
        *(0, *scales[0]),
        *(0, *scales[1]),
        *(0, 0, planes.census_blocks(layout.split, p.batch, device) if layout.split else 0),
    )
    return fields.ljust(round_up(len(fields), 64), b"\0")


def _cycles(layout: _Layout, device: Device, c: Configuration) -> float:
    p, a, b, out = layout.problem, layout.a, layout.b, layout.out
    tiles_m, tiles_n = _cluster_tiles(p, c)
    a_bytes, b_bytes = a.bytes(p.batch), b.bytes(p.batch)
    is_copied = sum(each.bytes(p.batch) for each in (a, b) if each.is_copy)
    return sm90_cost.cycles(
        sm90_cost.Work(
            tile_m=c.tile_m,
            tile_n=c.tile_n,
            cluster=c.cluster,
            splits=c.splits,
            units=tiles_m * tiles_n * c.cluster * c.splits * p.batches,
            steps=math.ceil(layout.k_steps / c.splits),
            planes=layout.planes,
            batches=p.batches,
            narrow_panels=layout.planes == 1 and c.tile_n > TILE_K and c.tile_n % TILE_K != 0,
            loaded_columns=_b_extent(layout, c),
            a_straddles=a.straddles,
            b_straddles=b.straddles,
            input_bytes=a_bytes + b_bytes,
            reread_bytes=a_bytes * (tiles_n - 1) + b_bytes * (tiles_m - 1),
            output_elements=p.m * p.n * p.batches,
            realigned_bytes=0 if layout.split else is_copied,
            split_bytes=is_copied if layout.split else 0,
            stored_by_threads=not out.aligned,
            reduced=out.is_partial,
        ),
        device,
    )


FAMILY: Final = Family("sm90", rejects, candidates, exclusions)
