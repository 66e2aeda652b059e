"""The launch that splits float32 operands into 16-bit terms: split.cu."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

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
from tilesmith.kernels.fp32_split.terms import BLOCKS_PER_SM, MAX_PARTS, MAX_ROWS, RowBlock, Scheme, Split, split_blocks
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
    rows: int  # of a row block, where lines run along K; none if the parameters tell

    @classmethod
    def of(cls, split: Split, scheme: Scheme, access: Access) -> "KindConstants":
        dtype, rows = split.terms.matrix.dtype, split.findings.row_block.rows
        return cls(
            Source=CUDA_TYPES[dtype],
            terms=scheme.terms_of(dtype),
            mn_major=split.terms.mn_major,
            access=access,
            rows=0 if split.terms.mn_major or access is Access.ANY else rows,
        )


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of split.cu."""

    full_range: bool
    finds_extents: bool
    a_is_rs: bool  # the product splits A itself, and needs no more than scales
    max_rows: int = MAX_ROWS
    max_parts: int = MAX_PARTS
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
    def of(cls, split: Split, batch: Sequence[int], first_block: int, *, corrects_bias: bool) -> "Operand":
        terms, matrix, found = split.terms, split.terms.matrix, split.findings
        scales, row_block, moving = found.scales, found.row_block, moving_batch(matrix, batch)
        row_blocks = math.ceil(matrix.rows / row_block.rows)
        return cls(
            source=Address(split.source),
            target=Address(terms.buffer, terms.offset),
            factors=Address(found.buffer, scales.factors),
            full_range_exponents=Address(found.buffer, scales.full_range_exponents),
            k_chunk_exponents=Address(found.buffer, scales.k_chunk_exponents),
            range_stats=Address(found.buffer, found.range_stats),
            extents=Address(found.buffer, found.extents or 0),
            row_stride=matrix.row_stride,
            k_stride=matrix.column_stride,
            batch_stride=tuple(stride for _, stride in moving),
            pitch=terms.line_stride,
            matrix_pitch=terms.matrix_elements,
            rows=matrix.rows,
            log2_lanes=(_THREADS // row_block.rows).bit_length() - 1,
            depth=matrix.columns,
            term_depth=terms.term_depth,
            log2_k_chunks=row_block.k_chunks.bit_length() - 1,
            k_chunk_depth=round_up(math.ceil(terms.term_depth / row_block.k_chunks), TILE_K),
            k_chunk_pitch=scales.k_chunk_pitch,
            parts=found.rs_parts or row_block.k_chunks,
            row_blocks=row_blocks,
            tasks=row_blocks * math.prod(n for n, _ in moving),
            scale_pitch=scales.pitch,
            first_block=first_block,
            batch_size=tuple(size for size, _ in moving),
            corrects_bias=int(corrects_bias),
            has_vectors=int(_access(split) is Access.VECTORS),
        )


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of split.cu."""

    operands: tuple[Operand, ...]  # two; if there is but one, that twice
    count: Int32
    range_check: Annotated[Pointer, to("tilesmith::RangeCheck", "kernels/fp32_split/range_check.cuh")]
    row_groups: Int32  # of A, if the product counts
    b_range_stats_count: Int32  # then


def split_launch(
    splits: Sequence[Split], scheme: Scheme, range_check: int | None, batch: Sequence[int], device: Device
) -> KernelLaunch:
    """The launch that splits one or two operands and finds their range statistics; or, if the scheme has the full
    range, first reads the range check, at an offset in the workspace."""
    first, last = splits[0], splits[-1]
    blocks = split_blocks([RowBlock.of(each.terms.matrix, batch) for each in splits], device)
    kinds = _kinds(splits, scheme)
    operands: list[Operand] = []
    busy = 0  # blocks that have a task more than the others
    for each in splits:
        corrects_bias = not scheme.full_range and _corrects_bias(each, splits)
        operands.append(Operand.of(each, batch, busy, corrects_bias=corrects_bias))
        busy = (busy + operands[-1].tasks * each.findings.row_block.k_chunks) % blocks
    parameters = Parameters(
        operands=(operands[0], operands[-1]),
        count=len(operands),
        range_check=None if range_check is None else Address("workspace", range_check),
        row_groups=first.findings.blocks,
        b_range_stats_count=last.findings.blocks,
    )
    constants = Constants(
        full_range=scheme.full_range,
        finds_extents=first.findings.extents is not None and not scheme.full_range,
        a_is_rs=first.findings.rs_parts > 0,
        blocks_per_sm=_FULL_RANGE_BLOCKS_PER_SM if scheme.full_range else BLOCKS_PER_SM,
        a=kinds[0],
        b=kinds[-1],
    )
    return KernelLaunch(
        Kernel.of("split", "kernels/fp32_split/split.cu", constants, parameters, threads=_THREADS),
        parameters,
        grid=(blocks, 1, 1),
        awaits_predecessor=True,
    )


def _kinds(splits: Sequence[Split], scheme: Scheme) -> list[KindConstants]:
    """The kind of each operand. There are as few as that costs no time: what as a rule is not split, or is seldom
    asked for, is of a kind that takes all."""
    is_mixed = len({each.terms.matrix.dtype for each in splits}) > 1
    accesses = [Access.ANY if scheme.full_range or is_mixed else _access(each) for each in splits]
    if splits[0].findings.rs_parts:
        accesses[0] = accesses[-1]
    return [KindConstants.of(each, scheme, access) for each, access in zip(splits, accesses, strict=True)]


def _access(split: Split) -> Access:
    matrix = split.terms.matrix
    return Access.of(matrix.transposed if split.terms.mn_major else matrix)


def _corrects_bias(split: Split, operands: Sequence[Split]) -> bool:
    """Whether the scales of this operand make up for what tensor cores cut off of sums: see split.cu. It is B, packed
    or not, if it has several terms; but A, if B is split by the product, which reads its scales as powers of two."""
    if split.terms.terms == 1 or split.findings.rs_parts:
        return False
    return split.source == "b" or any(each.findings.rs_parts for each in operands)
