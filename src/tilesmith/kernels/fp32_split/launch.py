"""The launch that splits float32 operands into 16-bit terms: split.cu."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import (
    TILE_K,
    Address,
    Int32,
    Int64,
    Int64s,
    KernelConstants,
    KernelEnum,
    ParameterBlock,
    Pointer,
    UInt32,
    UInt32s,
    to,
)
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.core.problem import Matrix
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.fp32_split.terms import (
    BLOCKS_PER_SM,
    MAX_ROWS,
    SCHEMES,
    RowBlock,
    Scheme,
    Schemes,
    Split,
    split_blocks,
)
from tilesmith.kernels.operand import aligned_lines, moving_batch, round_up

_THREADS: Final = 256
_FULL_RANGE_BLOCKS_PER_SM: Final = 2  # few, since as a rule they have nothing to do


class Access(KernelEnum):
    """How values that are side by side along a line are read."""

    VECTORS = 0  # aligned ones
    ELEMENTS = 1  # one by one, and they are neighbours in memory
    STRIDED = 2  # or are not
    ANY = 3  # as the parameters tell

    @classmethod
    def of(cls, lines: Matrix) -> "Access":
        if aligned_lines(lines):
            return cls.VECTORS
        return cls.ELEMENTS if lines.columns == 1 or lines.column_stride == 1 else cls.STRIDED


@dataclass(frozen=True, kw_only=True)
class KindConstants(KernelConstants):
    """A kind of operand."""

    Source: str
    terms: int
    mn_major: bool
    access: Access


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of split.cu."""

    full_range: bool
    finds_extents: bool
    a_is_rs: bool  # the product splits A itself, and needs no more than scales
    max_rows: int = MAX_ROWS
    blocks_per_sm: int
    a: KindConstants
    b: KindConstants  # that of A again if there is no other operand


@dataclass(frozen=True, kw_only=True)
class Operand(ParameterBlock):
    """An operand, and where what is found of it goes."""

    source: Annotated[Pointer, to("const void")]
    target: Annotated[Pointer, to("unsigned short")]
    factors: Annotated[Pointer, to("float")]  # for each row, what undoes its scale
    full_range_exponents: Annotated[Pointer, to("int")]  # for each row, of the full-range terms
    k_chunk_exponents: Annotated[Pointer, to("int")]  # what that would be for each K chunk alone
    # Of the blocks; of A, if the product counts: of groups of rows, for each part of K.
    range_stats: Annotated[Pointer, to("tilesmith::RangeStats", "kernels/fp32_split/range_check.cuh")]
    # Of every row block and K chunk, if someone asks for them.
    extents: Annotated[Pointer, to("tilesmith::Extent", "kernels/fp32_split/extent.cuh")]
    row_stride: Int64
    k_stride: Int64
    batch_stride: Int64s
    pitch: Int64  # of the lines of the terms
    matrix_pitch: Int64
    rows: Int32
    log2_lanes: Int32  # of the threads of a block, side by side along a line that runs along K
    depth: Int32
    term_depth: Int32  # the depth of a term, with its padding
    log2_k_chunks: Int32  # that K is cut into
    k_chunk_depth: Int32  # what a block has of it
    k_chunk_pitch: Int32  # of the K chunks' exponents
    parts: Int32  # of K that were counted apart: its K chunks, or more of them where the product counts
    row_blocks: UInt32  # of rows, in one matrix
    tasks: UInt32  # row blocks of all matrices
    scale_pitch: Int32
    first_block: UInt32  # that has a task
    batch_size: UInt32s
    corrects_bias: Int32  # its scales make up for what tensor cores cut off of sums: split.cu
    has_vectors: Int32  # lines are aligned, if the kind does not tell

    @property
    def k_chunks(self) -> int:
        return 1 << self.log2_k_chunks

    @classmethod
    def of(
        cls, split: Split, batch: Sequence[int], first_block: int, *, corrects_bias: bool, has_vectors: bool
    ) -> "Operand":
        terms, matrix, found = split.terms, split.terms.matrix, split.findings
        buffer, scales, (block_rows, k_chunks) = found.buffer, found.scales, found.row_block
        batch_size, batch_stride = moving_batch(matrix, batch)
        row_blocks = -(-matrix.rows // block_rows)
        return cls(
            source=Address(split.source),
            target=Address(terms.buffer, terms.offset),
            factors=Address(buffer, scales.factors),
            full_range_exponents=Address(buffer, scales.full_range_exponents),
            k_chunk_exponents=Address(buffer, scales.k_chunk_exponents),
            range_stats=Address(buffer, found.range_stats),
            extents=Address(buffer, found.extents or 0),
            row_stride=matrix.row_stride,
            k_stride=matrix.column_stride,
            batch_stride=batch_stride,
            pitch=terms.line_stride,
            matrix_pitch=terms.matrix_elements,
            rows=matrix.rows,
            log2_lanes=(_THREADS // block_rows).bit_length() - 1,
            depth=matrix.columns,
            term_depth=terms.term_depth,
            log2_k_chunks=k_chunks.bit_length() - 1,
            k_chunk_depth=round_up(-(-terms.term_depth // k_chunks), TILE_K),
            k_chunk_pitch=scales.k_chunk_pitch,
            parts=found.rs_parts or k_chunks,
            row_blocks=row_blocks,
            tasks=row_blocks * math.prod(batch_size),
            scale_pitch=scales.pitch,
            first_block=first_block,
            batch_size=batch_size,
            corrects_bias=int(corrects_bias),
            has_vectors=int(has_vectors),
        )

    def in_full_range(self, split: Split) -> "Operand":
        """The same operand with full-range terms."""
        terms = split.terms
        return self.changed(
            target=Address(terms.buffer, terms.offset),
            pitch=terms.line_stride,
            matrix_pitch=terms.matrix_elements,
            corrects_bias=0,
        )


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of split.cu."""

    operands: tuple[Operand, ...]  # two; if there is but one, that twice
    count: Int32
    range_check: Annotated[Pointer, to("tilesmith::RangeCheck", "kernels/fp32_split/range_check.cuh")]


def split_launch(
    splits: Sequence[Split], scheme: Scheme, range_check: int | None, batch: Sequence[int], device: Device
) -> KernelLaunch:
    """The launch that splits one or two operands and finds their range statistics; or, if the scheme has the full
    range, first reads the range check, at an offset in the workspace."""
    blocks = split_blocks([RowBlock.of(each.terms.matrix, batch) for each in splits], device)
    accesses = [_access(each) for each in splits]
    operands: list[Operand] = []
    busy = 0  # blocks that have a task more than the others
    for each, access in zip(splits, accesses, strict=True):
        corrects_bias = not scheme.full_range and _corrects_bias(each, splits)
        own = Operand.of(each, batch, busy, corrects_bias=corrects_bias, has_vectors=access is Access.VECTORS)
        operands.append(own)
        busy = (busy + own.tasks * each.findings.row_block.k_chunks) % blocks
    parameters = Parameters(
        operands=(operands[0], operands[-1]),
        count=len(operands),
        range_check=None if range_check is None else Address("workspace", range_check),
    )
    return _launch(splits, scheme, accesses, parameters, blocks)


def full_range_split(ordinary: KernelLaunch, splits: Sequence[Split], scheme: Scheme) -> KernelLaunch:
    """The launch that makes full-range terms of what another one makes ordinary terms of."""
    known = ordinary.parameters
    assert isinstance(known, Parameters)
    pairs = zip(known.operands, (splits[0], splits[-1]), strict=True)
    parameters = known.changed(operands=tuple([operand.in_full_range(split) for operand, split in pairs]))
    return _launch(splits, scheme, [Access.ANY] * len(splits), parameters, ordinary.grid[0])


def _launch(
    splits: Sequence[Split], scheme: Scheme, accesses: list[Access], parameters: Parameters, blocks: int
) -> KernelLaunch:
    """The launch of the kernel for such operands. `accesses`: how each of them can be read. There are as few kernels as
    that costs no time: what as a rule is not split, or is seldom asked for, is read in any way."""
    first = splits[0].findings
    is_narrow = [each.terms.matrix.dtype != torch.float32 for each in splits]
    if scheme.full_range or any(is_narrow) or Access.STRIDED in accesses or first.extents is not None:
        accesses = [Access.ANY] * len(splits)
    elif first.rs_parts:
        accesses = [accesses[-1]] * len(splits)
    kinds = [_kind(each, access) for each, access in zip(splits, accesses, strict=True)]
    if all(is_narrow):
        kinds.append(_PACKED_BESIDE_NARROW)
    kernel = _kernel(
        (kinds[0], kinds[-1]),
        scheme,
        first.extents is not None and not scheme.full_range,
        first.rs_parts > 0,
        parameters.declaration(),
    )
    return KernelLaunch(kernel, parameters, grid=(blocks, 1, 1), awaits_predecessor=True)


Kind = tuple[torch.dtype, bool, Access]  # of an operand: what its constants are made of
# The other operand of a product, if it is packed and the one to split has 16 bits: it could be of any kind.
_PACKED_BESIDE_NARROW: Final[Kind] = (torch.float32, False, Access.ANY)


def _kind(split: Split, access: Access) -> Kind:
    return split.terms.matrix.dtype, split.terms.mn_major, access


@cache
def _kernel(kinds: tuple[Kind, Kind], scheme: Scheme, finds_extents: bool, a_is_rs: bool, parameters: str) -> Kernel:
    a, b = (
        KindConstants(Source=CUDA_TYPES[dtype], terms=scheme.terms_of(dtype), mn_major=mn_major, access=access)
        for dtype, mn_major, access in kinds
    )
    constants = Constants(
        full_range=scheme.full_range,
        finds_extents=finds_extents,
        a_is_rs=a_is_rs,
        blocks_per_sm=_FULL_RANGE_BLOCKS_PER_SM if scheme.full_range else BLOCKS_PER_SM,
        a=a,
        b=b,
    )
    headers = Parameters.headers()
    return Kernel("split", "kernels/fp32_split/split.cu", constants, parameters, headers, _THREADS, shared_bytes=0)


def every_kernel(parameters: str) -> Iterator[Kernel]:
    """All that split. `parameters`: how C++ declares theirs."""
    for schemes in SCHEMES.values():
        for scheme, finds_extents, is_rs, kinds in _every_case(schemes):
            yield _kernel(kinds, scheme, finds_extents, is_rs, parameters)


def _every_case(schemes: Schemes) -> Iterator[tuple[Scheme, bool, bool, tuple[Kind, Kind]]]:
    """The scheme, whether there are extents, whether the product splits A, and the kinds of both operands."""
    ordinary, has_terms = schemes.ordinary, schemes.ordinary.terms > 1
    either = (Access.VECTORS, Access.ELEMENTS)
    for a_access, b_access in itertools.product(either, either):
        for kinds in itertools.product(_kinds(a_access), _kinds(b_access)):
            yield ordinary, False, False, kinds
    if has_terms:
        for access in either:
            for kinds in itertools.product(_kinds(access), _kinds(access)):
                yield ordinary, False, True, kinds
    for a, b in itertools.product((torch.float32, torch.float16, torch.bfloat16), repeat=2):
        if torch.float32 not in (a, b):
            continue
        for a_major, b_major in itertools.product((False, True), repeat=2):
            any_kinds = ((a, a_major, Access.ANY), (b, b_major, Access.ANY))
            for scheme in (ordinary, schemes.full_range):
                yield scheme, False, False, any_kinds
                if a == b and has_terms:
                    yield scheme, False, True, any_kinds
            if a == b and has_terms:
                yield ordinary, True, False, any_kinds


def _kinds(access: Access) -> list[Kind]:
    return [(torch.float32, mn_major, access) for mn_major in (False, True)]


def _access(split: Split) -> Access:
    matrix = split.terms.matrix
    return Access.of(matrix.transposed if split.terms.mn_major else matrix)


def _corrects_bias(split: Split, operands: Sequence[Split]) -> bool:
    """Whether the scales of this operand make up for what tensor cores cut off of sums: see split.cu. It is B, packed
    or not, if it has several terms; but A, if B is split by the product, which reads its scales as powers of two."""
    if split.terms.terms == 1 or split.findings.rs_parts:
        return False
    return split.source == "b" or any(each.findings.rs_parts for each in operands)
