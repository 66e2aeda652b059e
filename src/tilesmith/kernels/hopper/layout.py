"""How the operands and the result of a product lie in memory, and how the work is cut."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K, Buffer
from tilesmith.core.problem import ALIGNMENT, EpilogueSpec, Matrix, Problem
from tilesmith.kernels import operand, output
from tilesmith.kernels.epilogue import Activation, elements_at_once
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.fp32_split.terms import SCHEMES, SHORT_K, Scheme, Schemes, Split
from tilesmith.kernels.hopper import catalogue
from tilesmith.kernels.hopper.traits import MAX_EXTENTS, OPERAND_BYTES, WGMMA_M, Tile, Traits
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, Operand, round_up
from tilesmith.kernels.output import Output

_MIN_SHARE_OF_SMS: Final = 0.9  # worth it for keeping B


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
        is_partial = split_k > 1 or (c.rs and p.epilogue is not None)
        out = None if is_partial else _direct_output(p)
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
                extents=skips_zeros(p, c),
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
        return Layout(p, own_a, split[1].terms, self.out, end, scheme, split, self.range_check, self.terms_offset)

    @classmethod
    def sketched(cls, p: Problem, swap_ab: bool) -> "Layout":
        """The layout as the cost of a configuration depends on it: with nothing in its place in the workspace, and K in
        one part. `p`: the product as a Layout has it."""
        out = _direct_output(p) or output.partial(p.out, p.batches, 0)
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

    def sketched_in_registers(self, fp32_a: Operand) -> "Layout":
        """The same sketch with an A that is split in registers, where kernels have no epilogue of their own."""
        p = self.problem
        out = self.out if p.epilogue is None else output.partial(p.out, p.batches, 0)
        return Layout(p, fp32_a, self.b, out, 0, self.scheme)

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
        a, b, out, k = self.a, self.b, self.out, self.problem.k
        if self.epilogue is not None:
            return self._traits()
        # All that they depend on then: they are made anew for every layout, and there are few.
        key = (
            *(self.scheme, a.matrix.dtype, a.dtype, a.mn_major, a.terms, b.matrix.dtype, b.dtype, b.mn_major),
            *(out.dtype, out.along_m, out.aligned, out.is_partial, len(self.problem.batch), k <= TILE_K, k <= SHORT_K),
        )
        found = _known_traits.get(key)
        if found is None:
            found = _known_traits[key] = self._traits()
        return found

    def _traits(self) -> Traits:
        scheme, a, b, out, own = self.scheme, self.a, self.b, self.out, self.epilogue
        a_terms = b_terms = 1
        if scheme is not None:
            a_terms, b_terms = (scheme.terms_of(operand.matrix.dtype) for operand in (a, b))
        # What runs seldom has few kernels, which take more than they need to.
        is_rare = a_terms != b_terms or (scheme is not None and scheme.full_range)
        walked = MAX_BATCH_DIMS if is_rare else operand.walked_dims(self.problem.batch)
        # So has an output across the lines of tiles of many matrices.
        is_crossed = out.along_m and walked == MAX_BATCH_DIMS and not out.is_partial
        aligned = out.aligned and not is_crossed and not (scheme is not None and scheme.full_range)
        is_narrow = scheme is None and out.dtype.itemsize == OPERAND_BYTES
        is_simple = not is_rare and not out.is_partial and not out.along_m and own is None and walked <= 1
        only_stores = is_simple and self.problem.k <= TILE_K and (is_narrow or (aligned and scheme is not None))
        rs = scheme is not None and a.terms == 1 and a.dtype == torch.float32
        is_plain = is_simple and not only_stores and (aligned if is_narrow else scheme is not None and not rs)
        batch_dims = walked if is_plain else max(walked, 1)
        return Traits(
            operand=b.dtype,
            a_terms=a_terms,
            b_terms=b_terms,
            scale=Scale.NONE if scheme is None else Scale.EXPONENTS if scheme.full_range else Scale.FACTORS,
            rs=rs,
            a_mn_major=a.mn_major,
            b_mn_major=b.mn_major,
            batch_dims=batch_dims,
            out_batch_dims=1 if out.is_partial and aligned else batch_dims,
            out=out.dtype,
            out_along_m=out.along_m,
            out_aligned=aligned,
            only_stores=only_stores,
            has_epilogue=own is not None,
            activation=Activation.of(own),
            residual_vector=_residual_vector(own, out),
            with_least_product=_with_least_product(scheme, a_terms, b_terms, self.problem.k),
        )

    def tile(self, device: Device, c: Configuration) -> Tile:
        """What a block computes of this configuration."""
        may_skip = self.scheme is not None and not self.scheme.full_range
        skips = may_skip and skips_zeros(self.problem, c)
        return Tile(c.tile_m, c.tile_n, c.cluster, stationary_b(self, device, c), skips)

    @property
    def epilogue(self) -> EpilogueSpec | None:
        """The epilogue of the kernel itself: where its sums are parts of K, the launch that adds them has it."""
        return None if self.out.is_partial else self.problem.epilogue


_known_traits: Final[dict[tuple[Hashable, ...], Traits]] = {}


def _with_least_product(scheme: Scheme | None, a_terms: int, b_terms: int, k: int) -> bool:
    """Whether of two terms each the product of the second ones counts too."""
    return a_terms == b_terms == 2 and scheme is not None and (scheme.full_range or k <= SHORT_K)


def _direct_output(p: Problem) -> Output | None:
    """The output as it lies, if there are kernels that multiply and store it there with its epilogue. If not, partial
    products are stored, and the launch that adds them does all the rest."""
    out, own = output.direct(p.out, p.batch), p.epilogue
    is_widened = torch.float32 not in (p.a.dtype, p.b.dtype) and p.out.dtype == torch.float32
    if out is None or (is_widened and len(p.batch) > 1):
        return None
    if own is None:
        return out
    if own.bias is not None and (own.bias.column_stride if out.along_m else own.bias.row_stride):
        return None  # it runs across the lines of the output
    is_long, is_mixed = own.residual is not None or own.activation is not None, p.a.dtype != p.b.dtype
    if own.residual is not None and not _can_read(own.residual, out, own.activation):
        return None
    if is_mixed or is_widened or len(p.batch) > 1 or (is_long and out.along_m):
        return None
    # What often has an epilogue is x @ weight.T, or x @ weight.
    are_mn_major = _are_mn_major(p)
    features, weight = are_mn_major[::-1] if out.along_m else are_mn_major
    return None if features or (weight and own.activation is not None) else out


def _can_read(residual: Matrix, out: Output, activation: str | None) -> bool:
    """Whether kernels read such a residual: it has the output's type; and if it is added to sums that are rounded then,
    rows whose elements are neighbours, which pass through shared memory."""
    is_staged = out.dtype.itemsize == OPERAND_BYTES and activation is None
    return residual.dtype == out.dtype and (residual.column_stride == 1 or not is_staged)


def _are_mn_major(p: Problem) -> tuple[bool, bool]:
    """Whether the lines of A and B, as a kernel reads them, run along M and N."""
    return _is_mn_major(p.a), _is_mn_major(p.b.transposed)


def _is_mn_major(matrix: Matrix) -> bool:
    read = operand.direct(matrix, "a") if matrix.dtype != torch.float32 else None
    return operand.runs_along_rows(matrix) if read is None else read.mn_major


def _residual_vector(own: EpilogueSpec | None, out: Output) -> int:
    """The elements that are read at once of a residual; 0 if there is none."""
    if own is None or own.residual is None:
        return 0
    if own.activation is not None or not out.aligned:
        return 1
    at_once = elements_at_once(own.residual)
    if out.dtype.itemsize == OPERAND_BYTES:  # it is staged: tile_residual.cuh
        return at_once if at_once == ALIGNMENT // OPERAND_BYTES else 1
    return min(at_once, 2)


def may_skip_zeros(problem: Problem) -> bool:
    """Whether there are kernels that leave out steps along K in which an operand is zero. The full-range scheme never
    does: a zero may meet an infinity."""
    p = problem
    if not p.skips_zeros or (schemes := schemes_of(p)) is None:
        return False
    is_plain = not p.batch and not (p.a.packed or p.b.packed) and p.a.dtype == p.b.dtype
    is_stored_by_rows = p.epilogue is None and p.out.column_stride == 1
    is_long, is_small = p.k > TILE_K, _has_few_extents(p, Configuration(128, 128, cluster=2))
    return schemes.ordinary.terms > 1 and is_plain and is_stored_by_rows and is_long and is_small


def skips_zeros(problem: Problem, c: Configuration) -> bool:
    """Whether the tiles of this configuration do so."""
    is_whole = not c.rs and c.split_k == 1 and catalogue.may_skip_zeros((c.tile_m, c.tile_n, c.cluster))
    return is_whole and may_skip_zeros(problem) and _has_few_extents(problem, c)


def _has_few_extents(problem: Problem, c: Configuration) -> bool:
    return sum(cluster_tiles(problem, c)) <= MAX_EXTENTS


def fastest_first(problem: Problem) -> Problem:
    if len(problem.batch) < 2:
        return problem
    a, b, out = (x._replace(batch_strides=x.batch_strides[::-1]) for x in (problem.a, problem.b, problem.out))
    spec = problem.epilogue
    if spec is not None and (residual := spec.residual) is not None:
        spec = spec._replace(residual=residual._replace(batch_strides=residual.batch_strides[::-1]))
    return problem._replace(batch=problem.batch[::-1], a=a, b=b, out=out, epilogue=spec)


def clusters_of(layout: Layout, c: Configuration) -> int:
    """The clusters of tiles, for all matrices and parts of K."""
    return math.prod(cluster_tiles(layout.problem, c)) * c.split_k * layout.problem.batches


def clusters_at_once(problem: Problem, device: Device, tile: Tile) -> int:
    return _blocks_with_stationary_b(problem, device, tile.n) if tile.stationary_b else device.sm_count // tile.cluster


def stationary_b(layout: Layout, device: Device, c: Configuration) -> bool:
    """A block keeps to its columns, and loads their tile of B once: less to read where the store decides."""
    p = layout.problem
    may_stay = catalogue.may_stay_with_b(c.tile_m, c.tile_n) and layout.traits.only_stores
    if c.cluster > 1 or p.batches > 1 or not may_stay:
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
