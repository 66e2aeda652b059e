"""The product of the `sm90` family: how its operands and its result lie in memory, and the launch that multiplies."""

import math
import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels import finish, operand, planes, result
from tilesmith.kernels.finish import BiasOf
from tilesmith.kernels.operand import CUDA_TYPES, MOST_BATCH_DIMENSIONS, TILE_K, WORKSPACE_ALIGNMENT, Operand, round_up
from tilesmith.kernels.planes import SCHEMES, Scheme, Schemes, Split
from tilesmith.kernels.result import Result, Staging, Store
from tilesmith.plan import Address, Buffer, Constant, Kernel, Stage, Wgmma
from tilesmith.problem import Finish, Problem

WGMMA_M: Final = 64
WIDEST_PROMOTED: Final = 192  # columns of a tile that has two sets of sums
_OPERAND_BYTES: Final = 2
_MOST_STAGES: Final = 24
_BARRIER_BYTES: Final = 16  # of a stage
_SCALE_BYTES: Final = 4  # of a column
_BIAS_BYTES: Final = 4
_WIDEST_IN_SHORT_LINES: Final = 128  # of tiles of single planes: wider ones load columns that they do not use
_LEAST_SHARE_OF_SMS: Final = 0.9  # worth it for keeping B
_MOST_EXTENTS: Final = 512  # of rows and columns of tiles, in shared memory
SHORT_K: Final = 512  # in sums up to this, what two planes leave out may be more than what torch rounds off

# Registers of a producer's and of a consumer's thread, by consumers. They come from the pool of a block that started
# with registers_per_sm / threads for each.
_REGISTERS: Final = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
_REGISTERS_OF_RAW: Final = {1: (24, 248), 2: (24, 240)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the work is cut."""

    tile_m: int
    tile_n: int
    cluster: int = 1  # tiles one below the other that share columns of B
    splits: int = 1
    swap: bool = False  # compute the transposed product: few rows become few columns
    raw: bool = False  # float32 rows of A are split by those who multiply them, and not by a launch of their own

    def __str__(self) -> str:
        parts = [f"{self.tile_m}x{self.tile_n}"]
        if self.cluster > 1:
            parts.append(f"cluster {self.cluster}")
        if self.splits > 1:
            parts.append(f"split {self.splits}")
        if self.swap:
            parts.append("transposed")
        if self.raw:
            parts.append("raw")
        return " ".join(parts)

    @property
    def consumers(self) -> int:
        return self.tile_m // WGMMA_M

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * 128


def schemes_of(problem: Problem) -> Schemes | None:
    """How float32 operands become 16-bit ones; None if they are 16-bit ones already."""
    return SCHEMES[problem.accuracy] if torch.float32 in (problem.a.dtype, problem.b.dtype) else None


class Runs(IntEnum):
    """enum Runs of kernels/sm90/types.cuh."""

    ALWAYS = 0
    IF_PLANES_SUFFICE = 1
    IF_THEY_DO_NOT = 2


class Scale(IntEnum):
    """enum Scale of scale.cuh."""

    NONE = 0
    FACTORS = 1
    EXPONENTS = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The product as a kernel sees it: its operands and its result in memory."""

    problem: Problem  # transposed if asked for, the fastest batch dimension first
    a: Operand  # M x K
    b: Operand  # N x K
    out: Result
    workspace_bytes: int
    scheme: Scheme | None = None
    split: tuple[Split, Split] | None = None  # A and B, if they are planes
    verdict: int = 0  # offset in the workspace

    @classmethod
    def of(cls, problem: Problem, c: Configuration, device: Device, scheme: Scheme | None = None) -> "Layout":
        """`scheme`: of float32 operands, the ordinary one if none is given."""
        swap, splits = c.swap, c.splits
        p = fastest_first(problem.transposed if swap else problem)
        end = 0
        out = result.direct(p.out, p.batch) if splits == 1 else None
        if out is None:
            out = result.partial(p.out, splits * p.batches, end)
            end = round_up(out.bytes, WORKSPACE_ALIGNMENT)
        sources: tuple[Buffer, Buffer] = ("b", "a") if swap else ("a", "b")
        if schemes := schemes_of(problem):
            scheme = scheme or schemes.ordinary
            verdict = end + planes.verdict_offset(device)
            raw_parts = splits if c.raw else 0
            split, end = planes.split_pair(
                (p.a, p.b.transposed),
                sources,
                p.batch,
                scheme,
                end,
                device,
                raw_parts=raw_parts,
                extents=_skips_zeros(p, c),
            )
            raw_a = operand.direct(p.a, sources[0]) if c.raw else None
            return cls(p, raw_a or split[0].planes, split[1].planes, out, end, scheme, split, verdict)
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
        """The most that an operand has."""
        return max(self.planes_of_each)

    @property
    def a_is_raw(self) -> bool:
        """The kernel reads A as it is, and splits it."""
        return self.split is not None and self.a.planes == 1 and self.a.dtype == torch.float32

    @property
    def planes_of_each(self) -> tuple[int, int]:
        """Of A and of B, as the kernel makes products of them."""
        if self.scheme is None:
            return 1, 1
        return self.scheme.of(self.a.matrix.dtype).planes, self.scheme.of(self.b.matrix.dtype).planes

    def skips_zeros(self, c: Configuration) -> bool:
        """Tiles leave out steps along K in which an operand is zero."""
        return self.scheme is not None and not self.scheme.wide and _skips_zeros(self.problem, c)

    @property
    def finish(self) -> Finish | None:
        """Of the kernel's own sums: where they are parts, the launch that adds them finishes."""
        return None if self.out.is_partial else self.problem.finish

    @property
    def scale(self) -> Scale:
        if self.scheme is None:
            return Scale.NONE
        return Scale.EXPONENTS if self.scheme.wide else Scale.FACTORS


def _skips_zeros(problem: Problem, c: Configuration) -> bool:
    """Whether tiles leave out steps along K in which an operand is zero. The wide scheme never does: a zero may meet an
    infinity."""
    p, schemes = problem, schemes_of(problem)
    is_plain = not p.batch and not (p.a.packed or p.b.packed) and p.a.dtype == p.b.dtype
    is_whole = not c.raw and c.splits == 1 and p.k > TILE_K
    fits = sum(cluster_tiles(p, c)) <= _MOST_EXTENTS
    return p.skips_zeros and schemes is not None and schemes.ordinary.planes > 1 and is_plain and is_whole and fits


def fastest_first(problem: Problem) -> Problem:
    a, b, out = (replace(x, batch_strides=x.batch_strides[::-1]) for x in (problem.a, problem.b, problem.out))
    own_finish = problem.finish
    if own_finish is not None and (residual := own_finish.residual) is not None:
        own_finish = replace(own_finish, residual=replace(residual, batch_strides=residual.batch_strides[::-1]))
    return replace(problem, batch=problem.batch[::-1], a=a, b=b, out=out, finish=own_finish)


def product_stage(layout: Layout, device: Device, c: Configuration, runs: Runs) -> Stage:
    p, a, b, out = layout.problem, layout.a, layout.b, layout.out
    stages, shared_bytes = shared_memory(layout, device, c)
    staging = _staging(layout, c)
    tiles = clusters_of(layout, c)
    b_stays = _b_stays(layout, device, c)
    clusters = min(tiles, clusters_at_once(layout, device, c))
    arguments = _arguments(layout, device, c)
    finish_at = len(arguments)
    arguments += finish.arguments(layout.finish, MOST_BATCH_DIMENSIONS)
    arguments = arguments.ljust(round_up(len(arguments), 64), b"\0")
    producer_registers, consumer_registers = (_REGISTERS_OF_RAW if layout.a_is_raw else _REGISTERS)[c.consumers]
    skips_zeros = layout.skips_zeros(c)
    tiles_m, tiles_n = cluster_tiles(p, c)
    constants: dict[str, Constant] = {
        "Output": CUDA_TYPES[out.dtype],
        "tile_m": c.tile_m,
        "tile_n": c.tile_n,
        "b_extent": b_extent(layout, c),
        "stages": stages,
        "planes": layout.planes,
        "a_planes": layout.planes_of_each[0],
        "b_planes": layout.planes_of_each[1],
        "scale": int(layout.scale),
        "runs": int(runs),
        "widest_promoted": WIDEST_PROMOTED,
        "with_least_product": layout.planes_of_each == (2, 2) and p.k <= SHORT_K,
        "a_is_raw": layout.a_is_raw,
        "a_slabs": planes.slabs(a.matrix, p.batch) if layout.split else 1,
        "b_slabs": planes.slabs(b.matrix, p.batch) if layout.split else 1,
        "skips_zeros": skips_zeros,
        "a_strip_rows": planes.strip_rows(a.matrix) if skips_zeros else 1,
        "b_strip_rows": planes.strip_rows(b.matrix) if skips_zeros else 1,
        "extents_m": tiles_m if skips_zeros else 1,
        "extents_n": tiles_n if skips_zeros else 1,
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
        "producer_registers": producer_registers,
        "consumer_registers": consumer_registers,
        **finish.constants(layout.finish),
        "residual_vector": _residual_vector(layout),
        "shared_bytes": shared_bytes,
        "parameter_bytes": len(arguments),
    }
    maps = [a.tensor_map(0, c.tile_m, 1, p.batch), b.tensor_map(128, b_extent(layout, c), c.cluster, p.batch)]
    addresses = [*finish.addresses(layout.finish, finish_at)]
    if staging.store is Store.BOXES:
        maps.append(out.tensor_map(256, staging))
    else:
        addresses.append(Address(_OUT_ADDRESS, out.buffer, out.offset))
    if layout.split:
        for each, at, census_at in zip(layout.split, _SCALES_ADDRESSES, _CENSUS_ADDRESSES, strict=True):
            found = each.findings
            undo = found.scales.wide_exponents if layout.scale is Scale.EXPONENTS else found.scales.factors
            addresses += [Address(at, found.buffer, undo), Address(census_at, found.buffer, found.censuses)]
        addresses.append(Address(_VERDICT_ADDRESS, "workspace", layout.verdict))
        if layout.a_is_raw:
            scales = layout.split[0].findings.scales
            addresses.append(Address(_EXPONENTS_ADDRESS, "workspace", scales.slab_exponents))
        if skips_zeros:
            for each, at in zip(layout.split, _EXTENTS_ADDRESSES, strict=True):
                assert each.findings.extents is not None
                addresses.append(Address(at, "workspace", each.findings.extents))
    return Stage(
        kernel=Kernel(
            "sm90",
            "kernels/sm90.cu",
            tuple(constants.items()),
            shared_bytes,
            Wgmma(c.tile_n, b.dtype, a.mn_major, b.mn_major, a_in_registers=layout.a_is_raw),
        ),
        grid=(clusters * c.cluster, 1, 1),
        threads=c.threads,
        arguments=arguments,
        addresses=tuple(addresses),
        tensor_maps=tuple(maps),
        cluster=c.cluster,
        awaits_predecessor=True,
    )


def _residual_vector(layout: Layout) -> int:
    """The elements of a residual that are read at once, if it is staged: tile_residual.cuh. Else 0."""
    own, out = layout.finish, layout.out
    if own is None or own.residual is None or own.activation is not None or out.along_m:
        return 0
    is_narrow = out.dtype.itemsize == own.residual.dtype.itemsize == _OPERAND_BYTES
    return finish.elements_at_once(own.residual) if is_narrow and own.residual.column_stride == 1 else 0


def clusters_of(layout: Layout, c: Configuration) -> int:
    """Of tiles, for all matrices and parts of K."""
    return math.prod(cluster_tiles(layout.problem, c)) * c.splits * layout.problem.batches


def clusters_at_once(layout: Layout, device: Device, c: Configuration) -> int:
    if _b_stays(layout, device, c):
        return _blocks_where_b_stays(layout.problem, device, c)
    return device.sm_count // c.cluster


def shared_memory(layout: Layout, device: Device, c: Configuration) -> tuple[int, int]:
    """The stages that fit in a block's shared memory, and the bytes that they and the staged output take."""
    staging = _staging(layout, c)
    staged = c.tile_m * staging.buffers * (staging.chunk * layout.out.dtype.itemsize + staging.padding)
    if layout.scale is not Scale.NONE:
        staged += c.consumers * c.tile_n * _SCALE_BYTES
    if finish.bias_of(layout.finish) is BiasOf.COLUMNS:
        staged += c.consumers * c.tile_n * _BIAS_BYTES
    if layout.skips_zeros(c):
        staged += sum(cluster_tiles(layout.problem, c)) * planes.EXTENT_BYTES
    a_bytes, b_bytes = (rows * TILE_K * _OPERAND_BYTES for rows in (c.tile_m, b_extent(layout, c)))
    if layout.a_is_raw:
        a_bytes, b_bytes = c.tile_m * TILE_K * layout.a.dtype.itemsize, layout.planes * b_bytes
    stage, once = a_bytes + b_bytes + _BARRIER_BYTES, staged
    if _b_stays(layout, device, c):
        stage, once = stage - b_bytes, once + layout.planes * b_bytes
    stages = min((device.shared_bytes_per_block - once) // stage, _MOST_STAGES)
    # Loading many short tiles ahead would put off the stores of the first ones.
    if _only_stores(layout):
        stages = min(stages, 3 * layout.planes)
    return stages, stages * stage + once


def _staging(layout: Layout, c: Configuration) -> Staging:
    planes = layout.planes > 1
    by_rows = _only_stores(layout)
    return layout.out.staging(c.tile_n, by_rows=by_rows, overlapped=planes, lean=planes and not by_rows)


def b_extent(layout: Layout, c: Configuration) -> int:
    """The columns of B that are loaded for a tile: more than the tile has, if that makes lines of full width."""
    widest_in_short = TILE_K if layout.planes > 1 else _WIDEST_IN_SHORT_LINES
    if layout.b.mn_major and c.tile_n > widest_in_short:
        return round_up(c.tile_n, TILE_K)
    return c.tile_n


def _only_stores(layout: Layout) -> bool:
    """K is one step: the output's way to memory decides."""
    return layout.k_steps == 1 and not layout.out.is_partial


def _b_stays(layout: Layout, device: Device, c: Configuration) -> bool:
    """A block keeps to its columns, and loads their tile of B once: less to read where the store decides."""
    p = layout.problem
    if not _only_stores(layout) or c.cluster > 1 or p.batches > 1 or layout.scale is Scale.EXPONENTS:
        return False
    return _blocks_where_b_stays(p, device, c) >= _LEAST_SHARE_OF_SMS * device.sm_count


def _blocks_where_b_stays(problem: Problem, device: Device, c: Configuration) -> int:
    """A multiple of the tiles of a panel side by side, which they walk through row by row: so a block's column is the
    same in all rows (scheduler.cuh)."""
    panel = _panel(problem, device, c)
    return device.sm_count // panel * panel


def _panel(problem: Problem, device: Device, c: Configuration) -> int:
    """Columns of tiles that fit into the GPU at once, if they are parts of equal size."""
    _, tiles_n = cluster_tiles(problem, c)
    parts = math.ceil(tiles_n / device.sm_count)
    return tiles_n // parts if tiles_n % parts == 0 else tiles_n


def cluster_tiles(problem: Problem, c: Configuration) -> tuple[int, int]:
    return math.ceil(problem.m / (c.tile_m * c.cluster)), math.ceil(problem.n / c.tile_n)


def _band(layout: Layout) -> int:
    """Clusters of tile rows that share a band of the raster. Memory prefers to be written along rows."""
    return 1 if _only_stores(layout) else 8


# In struct Parameters of kernels/sm90/types.cuh.
_OUT_ADDRESS: Final = 384
_SCALES_ADDRESSES: Final = (512, 536)  # of A, of B
_CENSUS_ADDRESSES: Final = (560, 568)
_VERDICT_ADDRESS: Final = 576
_EXPONENTS_ADDRESS: Final = 592  # of a raw A
_EXTENTS_ADDRESSES: Final = (608, 624)


def _arguments(layout: Layout, device: Device, c: Configuration) -> bytes:
    """struct Parameters of kernels/sm90/types.cuh, which asserts its size."""
    p, out = layout.problem, layout.out
    padding = (0,) * (MOST_BATCH_DIMENSIONS - len(p.batch))
    out_strides = (0,) * len(p.batch) if out.is_partial else out.batch_strides
    split = layout.split or ()
    scales = [(each.findings.scales.pitch, *each.matrix_steps, *padding) for each in split] or [(0, 0, 0, 0)] * 2
    fields = struct.pack(
        "<384x2q2i3q20iq4iq4i3q2iqi4xqi4xqi",
        *(0, out.line_stride, out.lines, out.length),
        *(*out_strides, *padding),
        *(
            *cluster_tiles(p, c),
            c.splits,
            p.batches,
            *divmod(layout.k_steps, c.splits),
            _band(layout),
            _panel(p, device, c),
        ),
        *(*p.batch, *padding),
        *(*(int(stride != 0) for stride in layout.a.batch_strides), *padding),
        *(*(int(stride != 0) for stride in layout.b.batch_strides), *padding),
        *(p.m, p.k, layout.b.plane_depth),
        *(0, *scales[0]),
        *(0, *scales[1]),
        *(0, 0, 0, *([each.findings.blocks for each in split] or (0, 0))),
        *(0, split[0].findings.scales.slab_pitch if split else 0),
        *(x for each in (p.a, p.b.transposed) for x in (0, planes.strips(each) if layout.skips_zeros(c) else 0)),
    )
    return fields.ljust(round_up(len(fields), 64), b"\0")
