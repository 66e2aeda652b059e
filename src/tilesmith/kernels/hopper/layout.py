"""How the operands and the result of a product lie in memory, and how the work is cut."""

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K, Buffer, KernelEnum
from tilesmith.core.problem import EpilogueSpec, Problem
from tilesmith.kernels import operand, output
from tilesmith.kernels.epilogue import BiasOf, elements_at_once
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.terms import SCHEMES, Scheme, Schemes, Split
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, Operand, round_up
from tilesmith.kernels.output import Output, Staging

WGMMA_M: Final = 64
MAX_PROMOTED_TILE_N: Final = 192  # columns of a tile that has two sets of sums
OPERAND_BYTES: Final = 2
_MAX_STAGES: Final = 24
_BARRIER_BYTES: Final = 16  # of a stage
_SCALE_BYTES: Final = 4  # of a column
_BIAS_BYTES: Final = 4
_MAX_TILE_N_IN_SHORT_LINES: Final = 128  # of tiles of single terms: wider ones load columns that they do not use
_MIN_SHARE_OF_SMS: Final = 0.9  # worth it for keeping B
_MAX_EXTENTS: Final = 512  # of rows and columns of tiles, in shared memory
SHORT_K: Final = 512  # in sums up to this, what two terms leave out may be more than what torch rounds off


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the work is cut."""

    tile_m: int
    tile_n: int
    cluster: int = 1  # tiles one below the other that share columns of B
    split_k: int = 1
    swap_ab: bool = False  # compute the transposed product: few rows become few columns
    rs: bool = False  # float32 rows of A are split by those who multiply them, and not by a launch of their own

    def __str__(self) -> str:
        parts = [f"{self.tile_m}x{self.tile_n}"]
        if self.cluster > 1:
            parts.append(f"cluster {self.cluster}")
        if self.split_k > 1:
            parts.append(f"split_k {self.split_k}")
        if self.swap_ab:
            parts.append("swap_ab")
        if self.rs:
            parts.append("rs")
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


class Scale(KernelEnum):
    """What undoes the scales of operands."""

    NONE = 0
    FACTORS = 1  # powers of two, those of one operand with a little more: see split.cu
    EXPONENTS = 2  # of two, of any size


@dataclass(frozen=True, slots=True)
class Layout:
    """The product as a kernel sees it: its operands and its result in memory."""

    problem: Problem  # transposed if asked for, the fastest batch dimension first
    a: Operand  # M x K
    b: Operand  # N x K
    out: Output
    workspace_bytes: int
    scheme: Scheme | None = None
    split: tuple[Split, Split] | None = None  # A and B, if they are terms
    range_check: int = 0  # offset in the workspace

    @classmethod
    def of(cls, problem: Problem, c: Configuration, device: Device, scheme: Scheme | None = None) -> "Layout":
        """`scheme`: of float32 operands, the ordinary one if none is given."""
        swap_ab, split_k = c.swap_ab, c.split_k
        p = fastest_first(problem.transposed if swap_ab else problem)
        end = 0
        out = output.direct(p.out, p.batch) if split_k == 1 else None
        if out is None:
            out = output.partial(p.out, split_k * p.batches, end)
            end = round_up(out.bytes, WORKSPACE_ALIGNMENT)
        sources: tuple[Buffer, Buffer] = ("b", "a") if swap_ab else ("a", "b")
        if schemes := schemes_of(problem):
            scheme = scheme or schemes.ordinary
            range_check = end + terms.range_check_offset(device)
            rs_parts = split_k if c.rs else 0
            split, end = terms.split_pair(
                (p.a, p.b.transposed),
                sources,
                p.batch,
                scheme,
                end,
                device,
                rs_parts=rs_parts,
                extents=_skips_zeros(p, c),
            )
            fp32_a = operand.direct(p.a, sources[0]) if c.rs else None
            return cls(p, fp32_a or split[0].terms, split[1].terms, out, end, scheme, split, range_check)
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
    def terms(self) -> int:
        """The most that an operand has."""
        return max(self.terms_of_each)

    @property
    def a_is_rs(self) -> bool:
        """Whether the kernel reads A as it is, and splits it."""
        return self.split is not None and self.a.terms == 1 and self.a.dtype == torch.float32

    @property
    def terms_of_each(self) -> tuple[int, int]:
        """The terms of A and of B, as the kernel makes products of them."""
        if self.scheme is None:
            return 1, 1
        return self.scheme.of(self.a.matrix.dtype).terms, self.scheme.of(self.b.matrix.dtype).terms

    def skips_zeros(self, c: Configuration) -> bool:
        """Tiles leave out steps along K in which an operand is zero."""
        return self.scheme is not None and not self.scheme.full_range and _skips_zeros(self.problem, c)

    @property
    def epilogue(self) -> EpilogueSpec | None:
        """The epilogue of the kernel itself: where its sums are parts of K, the launch that adds them has it."""
        return None if self.out.is_partial else self.problem.epilogue

    @property
    def scale(self) -> Scale:
        if self.scheme is None:
            return Scale.NONE
        return Scale.EXPONENTS if self.scheme.full_range else Scale.FACTORS


def _skips_zeros(problem: Problem, c: Configuration) -> bool:
    """Whether tiles leave out steps along K in which an operand is zero. The full-range scheme never does: a zero may
    meet an infinity."""
    p, schemes = problem, schemes_of(problem)
    is_plain = not p.batch and not (p.a.packed or p.b.packed) and p.a.dtype == p.b.dtype
    is_whole = not c.rs and c.split_k == 1 and p.k > TILE_K
    fits = sum(cluster_tiles(p, c)) <= _MAX_EXTENTS
    return p.skips_zeros and schemes is not None and schemes.ordinary.terms > 1 and is_plain and is_whole and fits


def fastest_first(problem: Problem) -> Problem:
    a, b, out = (replace(x, batch_strides=x.batch_strides[::-1]) for x in (problem.a, problem.b, problem.out))
    spec = problem.epilogue
    if spec is not None and (residual := spec.residual) is not None:
        spec = replace(spec, residual=replace(residual, batch_strides=residual.batch_strides[::-1]))
    return replace(problem, batch=problem.batch[::-1], a=a, b=b, out=out, epilogue=spec)


def residual_vector(layout: Layout) -> int:
    """The elements of a residual that are read at once, if it is staged: tile_residual.cuh. Else 0."""
    own, out = layout.epilogue, layout.out
    if own is None or own.residual is None or own.activation is not None or out.along_m:
        return 0
    is_narrow = out.dtype.itemsize == own.residual.dtype.itemsize == OPERAND_BYTES
    return elements_at_once(own.residual) if is_narrow and own.residual.column_stride == 1 else 0


def clusters_of(layout: Layout, c: Configuration) -> int:
    """The clusters of tiles, for all matrices and parts of K."""
    return math.prod(cluster_tiles(layout.problem, c)) * c.split_k * layout.problem.batches


def clusters_at_once(layout: Layout, device: Device, c: Configuration) -> int:
    if stationary_b(layout, device, c):
        return _blocks_with_stationary_b(layout.problem, device, c)
    return device.sm_count // c.cluster


def shared_memory(layout: Layout, device: Device, c: Configuration) -> tuple[int, int]:
    """The stages that fit in a block's shared memory, and the bytes that they and the staged output take."""
    own = staging(layout, c)
    staged = c.tile_m * own.buffers * (own.chunk * layout.out.dtype.itemsize + own.padding)
    if layout.scale is not Scale.NONE:
        staged += c.consumers * c.tile_n * _SCALE_BYTES
    if BiasOf.spec(layout.epilogue) is BiasOf.COLUMNS:
        staged += c.consumers * c.tile_n * _BIAS_BYTES
    if layout.skips_zeros(c):
        staged += sum(cluster_tiles(layout.problem, c)) * terms.EXTENT_BYTES
    a_bytes, b_bytes = (rows * TILE_K * OPERAND_BYTES for rows in (c.tile_m, b_extent(layout, c)))
    if layout.a_is_rs:
        a_bytes, b_bytes = c.tile_m * TILE_K * layout.a.dtype.itemsize, layout.terms * b_bytes
    stage, once = a_bytes + b_bytes + _BARRIER_BYTES, staged
    if stationary_b(layout, device, c):
        stage, once = stage - b_bytes, once + layout.terms * b_bytes
    stages = min((device.shared_bytes_per_block - once) // stage, _MAX_STAGES)
    # Loading many short tiles ahead would put off the stores of the first ones.
    if _only_stores(layout):
        stages = min(stages, 3 * layout.terms)
    return stages, stages * stage + once


def staging(layout: Layout, c: Configuration) -> Staging:
    terms = layout.terms > 1
    by_rows = _only_stores(layout)
    return layout.out.staging(c.tile_n, by_rows=by_rows, overlapped=terms, lean=terms and not by_rows)


def b_extent(layout: Layout, c: Configuration) -> int:
    """The columns of B that are loaded for a tile: more than the tile has, if that makes lines of full width."""
    max_in_short_lines = TILE_K if layout.terms > 1 else _MAX_TILE_N_IN_SHORT_LINES
    if layout.b.mn_major and c.tile_n > max_in_short_lines:
        return round_up(c.tile_n, TILE_K)
    return c.tile_n


def _only_stores(layout: Layout) -> bool:
    """K is one step: the output's way to memory decides."""
    return layout.k_steps == 1 and not layout.out.is_partial


def stationary_b(layout: Layout, device: Device, c: Configuration) -> bool:
    """A block keeps to its columns, and loads their tile of B once: less to read where the store decides."""
    p = layout.problem
    if not _only_stores(layout) or c.cluster > 1 or p.batches > 1 or layout.scale is Scale.EXPONENTS:
        return False
    return _blocks_with_stationary_b(p, device, c) >= _MIN_SHARE_OF_SMS * device.sm_count


def _blocks_with_stationary_b(problem: Problem, device: Device, c: Configuration) -> int:
    """A multiple of the tiles of a column group, which they walk through row by row: so a block's column is the
    same in all rows (scheduler.cuh)."""
    columns = column_group(problem, device, c)
    return device.sm_count // columns * columns


def column_group(problem: Problem, device: Device, c: Configuration) -> int:
    """Columns of tiles that fit into the GPU at once, if they are parts of equal size."""
    _, tiles_n = cluster_tiles(problem, c)
    parts = math.ceil(tiles_n / device.sm_count)
    return tiles_n // parts if tiles_n % parts == 0 else tiles_n


def cluster_tiles(problem: Problem, c: Configuration) -> tuple[int, int]:
    return math.ceil(problem.m / (c.tile_m * c.cluster)), math.ceil(problem.n / c.tile_n)


def raster_group(layout: Layout) -> int:
    """How many clusters of tile rows make a raster group. Memory prefers to be written along rows."""
    return 1 if _only_stores(layout) else 8
