"""How the operands and the result of a product lie in memory, and how the work is cut."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K, Buffer
from tilesmith.core.problem import EpilogueSpec, Problem
from tilesmith.kernels import operand, output
from tilesmith.kernels.epilogue import EpilogueConstants, elements_at_once
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.terms import SCHEMES, Scheme, Schemes, Split
from tilesmith.kernels.hopper.traits import MAX_EXTENTS, OPERAND_BYTES, WGMMA_M, Scale, Tile, Traits
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, Operand, round_up
from tilesmith.kernels.output import Output

_MIN_SHARE_OF_SMS: Final = 0.9  # worth it for keeping B
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


def schemes_of(problem: Problem) -> Schemes | None:
    """How float32 operands become 16-bit ones; None if they are 16-bit ones already."""
    return SCHEMES[problem.accuracy] if torch.float32 in (problem.a.dtype, problem.b.dtype) else None


def sources_of(swap_ab: bool) -> tuple[Buffer, Buffer]:
    """Where A and B come from."""
    return ("b", "a") if swap_ab else ("a", "b")


@dataclass(frozen=True)
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
    terms_offset: int = 0  # of the first terms there

    @classmethod
    def of(cls, problem: Problem, c: Configuration, device: Device) -> "Layout":
        """The layout of a configuration; of float32 operands with the terms of the ordinary scheme."""
        swap_ab, split_k = c.swap_ab, c.split_k
        p = fastest_first(problem.transposed if swap_ab else problem)
        end = 0
        out = output.direct(p.out, p.batch) if split_k == 1 else None
        if out is None:
            out = output.partial(p.out, split_k * p.batches, end)
            end = round_up(out.bytes, WORKSPACE_ALIGNMENT)
        sources = sources_of(swap_ab)
        if schemes := schemes_of(problem):
            matrices, range_check = (p.a, p.b.transposed), end + terms.range_check_offset(device)
            found, end = terms.find_pair(
                matrices,
                sources,
                p.batch,
                end,
                device,
                rs_parts=split_k if c.rs else 0,
                extents=_skips_zeros(p, c),
            )
            split, after = terms.split_pair(matrices, sources, p.batch, schemes.ordinary, found, end, device)
            fp32_a = operand.direct(p.a, sources[0]) if c.rs else None
            operands = fp32_a or split[0].terms, split[1].terms
            return cls(p, *operands, out, after, schemes.ordinary, split, range_check, terms_offset=end)
        a = operand.direct(p.a, sources[0])
        if a is None:
            a, end = operand.realigned(p.a, p.batch, end)
        b = operand.direct(p.b.transposed, sources[1])
        if b is None:
            b, end = operand.realigned(p.b.transposed, p.batch, end)
        return cls(p, a, b, out, end)

    def with_terms_of(self, scheme: Scheme, device: Device) -> "Layout":
        """The same with the terms of another scheme, in the same place."""
        assert self.split is not None
        p, (a, b) = self.problem, self.split
        matrices, found = (p.a, p.b.transposed), (a.findings, b.findings)
        split, end = terms.split_pair(matrices, (a.source, b.source), p.batch, scheme, found, self.terms_offset, device)
        own_a = split[0].terms if self.a is a.terms else self.a
        return replace(self, a=own_a, b=split[1].terms, workspace_bytes=end, scheme=scheme, split=split)

    @classmethod
    def sketched(cls, p: Problem, swap_ab: bool) -> "Layout":
        """The layout as the cost of a configuration depends on it: with nothing in its place in the workspace, and K in
        one part. `p`: the product as a Layout has it."""
        out = output.direct(p.out, p.batch) or output.partial(p.out, p.batches, 0)
        pairs = ((p.a, sources_of(swap_ab)[0]), (p.b.transposed, sources_of(swap_ab)[1]))
        if schemes := schemes_of(p):
            scheme = schemes.ordinary
            a, b = [
                terms.terms_of(matrix, p.batch, scheme, terms.PACKED[source] if matrix.packed else "workspace", 0)[0]
                for matrix, source in pairs
            ]
            return cls(p, a, b, out, 0, scheme)
        a, b = [operand.direct(matrix, source) or operand.realigned(matrix, p.batch, 0)[0] for matrix, source in pairs]
        return cls(p, a, b, out, 0)

    def sketched_in_registers(self, swap_ab: bool) -> "Layout | None":
        """The same sketch with an A that is split in registers; None if TMA cannot read it."""
        p = self.problem
        a = operand.direct(p.a, sources_of(swap_ab)[0])
        return None if a is None else Layout(p, a, self.b, self.out, 0, self.scheme)

    def sketched_in_parts(self) -> "Layout":
        """The same sketch with partial products of several parts of K."""
        p = self.problem
        return Layout(p, self.a, self.b, output.partial(p.out, 2 * p.batches, 0), 0, self.scheme)

    @property
    def k_steps(self) -> int:
        return -(-self.problem.k // TILE_K)

    @cached_property
    def traits(self) -> Traits:
        """What kernels for this layout are compiled for. A sketched one leaves out what no cost depends on."""
        scheme, a, b, out = self.scheme, self.a, self.b, self.out
        a_terms = b_terms = 1
        if scheme is not None:
            a_terms, b_terms = (scheme.terms_of(operand.matrix.dtype) for operand in (a, b))
        return Traits(
            operand=b.dtype,
            a_terms=a_terms,
            b_terms=b_terms,
            scale=Scale.NONE if scheme is None else Scale.EXPONENTS if scheme.full_range else Scale.FACTORS,
            rs=scheme is not None and a.terms == 1 and a.dtype == torch.float32,
            a_mn_major=a.mn_major,
            b_mn_major=b.mn_major,
            batch_dims=operand.walked_dims(self.problem.batch),
            out_batch_dims=operand.walked_dims(out.batch),
            out=out.dtype,
            out_along_m=out.along_m,
            out_aligned=out.aligned,
            only_stores=self.problem.k <= TILE_K and not out.is_partial,
            epilogue=EpilogueConstants.of(self.epilogue),
            residual_vector=self._residual_vector,
            with_least_product=self.split is not None and a_terms == b_terms == 2 and self.problem.k <= SHORT_K,
            a_k_chunks=1 if self.split is None else self.split[0].findings.row_block.k_chunks,
            b_k_chunks=1 if self.split is None else self.split[1].findings.row_block.k_chunks,
        )

    def tile(self, device: Device, c: Configuration) -> Tile:
        """What a block computes of this configuration."""
        may_skip = self.scheme is not None and not self.scheme.full_range
        skips_zeros = may_skip and _skips_zeros(self.problem, c)
        return Tile(c.tile_m, c.tile_n, c.cluster, stationary_b(self, device, c), skips_zeros)

    @property
    def epilogue(self) -> EpilogueSpec | None:
        """The epilogue of the kernel itself: where its sums are parts of K, the launch that adds them has it."""
        return None if self.out.is_partial else self.problem.epilogue

    @property
    def _residual_vector(self) -> int:
        own, out = self.epilogue, self.out
        if own is None or own.residual is None or own.activation is not None or out.along_m:
            return 0
        is_narrow = out.dtype.itemsize == own.residual.dtype.itemsize == OPERAND_BYTES
        return elements_at_once(own.residual) if is_narrow and own.residual.column_stride == 1 else 0


def _skips_zeros(problem: Problem, c: Configuration) -> bool:
    """Whether tiles leave out steps along K in which an operand is zero. The full-range scheme never does: a zero may
    meet an infinity."""
    p = problem
    if not p.skips_zeros or (schemes := schemes_of(p)) is None:
        return False
    is_plain = not p.batch and not (p.a.packed or p.b.packed) and p.a.dtype == p.b.dtype
    is_whole = not c.rs and c.split_k == 1 and p.k > TILE_K
    return schemes.ordinary.terms > 1 and is_plain and is_whole and sum(cluster_tiles(p, c)) <= MAX_EXTENTS


def fastest_first(problem: Problem) -> Problem:
    if len(problem.batch) < 2:
        return problem
    a, b, out = (replace(x, batch_strides=x.batch_strides[::-1]) for x in (problem.a, problem.b, problem.out))
    spec = problem.epilogue
    if spec is not None and (residual := spec.residual) is not None:
        spec = replace(spec, residual=replace(residual, batch_strides=residual.batch_strides[::-1]))
    return replace(problem, batch=problem.batch[::-1], a=a, b=b, out=out, epilogue=spec)


def clusters_of(layout: Layout, c: Configuration) -> int:
    """The clusters of tiles, for all matrices and parts of K."""
    return math.prod(cluster_tiles(layout.problem, c)) * c.split_k * layout.problem.batches


def clusters_at_once(problem: Problem, device: Device, tile: Tile) -> int:
    return _blocks_with_stationary_b(problem, device, tile.n) if tile.stationary_b else device.sm_count // tile.cluster


def stationary_b(layout: Layout, device: Device, c: Configuration) -> bool:
    """A block keeps to its columns, and loads their tile of B once: less to read where the store decides."""
    p = layout.problem
    if p.k > TILE_K or layout.out.is_partial or c.cluster > 1 or p.batches > 1:
        return False
    if layout.scheme is not None and layout.scheme.full_range:
        return False
    return _blocks_with_stationary_b(p, device, c.tile_n) >= _MIN_SHARE_OF_SMS * device.sm_count


def _blocks_with_stationary_b(problem: Problem, device: Device, tile_n: int) -> int:
    """A multiple of the tiles of a column group, which they walk through row by row: so a block's column is the
    same in all rows (scheduler.cuh)."""
    columns = column_group(problem, device, tile_n)
    return device.sm_count // columns * columns


def column_group(problem: Problem, device: Device, tile_n: int) -> int:
    """Columns of tiles that fit into the GPU at once, if they are parts of equal size."""
    tiles_n = -(-problem.n // tile_n)
    parts = -(-tiles_n // device.sm_count)
    return tiles_n // parts if tiles_n % parts == 0 else tiles_n


def cluster_tiles(problem: Problem, c: Configuration) -> tuple[int, int]:
    return -(-problem.m // (c.tile_m * c.cluster)), -(-problem.n // c.tile_n)
