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
from tilesmith.kernels.fp32_split.terms import BLOCKS_PER_SM, MAX_ROWS, RowBlock, Scheme, Split, split_blocks
from tilesmith.kernels.operand import aligned_lines, moving_batch, round_up

_THREADS: Final = 256
_FULL_RANGE_BLOCKS_PER_SM: Final = 2  # few, since as a rule they have nothing to do


class Access(KernelEnum):
    """How values that are side by side along a line are read."""

    VECTORS = 0  # aligned ones
    ELEMENTS = 1  # one by one, and they are neighbours in memory
    STRIDED = 2  # or are not

    @classmethod
    def of(cls, lines: Matrix) -> "Access":
        if aligned_lines(lines):
            return cls.VECTORS
        return cls.ELEMENTS if lines.columns == 1 or lines.column_stride == 1 else cls.STRIDED


@dataclass(frozen=True, kw_only=True)
class OperandConstants(KernelConstants):
    """How one operand is split."""

    Source: str
    terms: int
    mn_major: bool
    access: Access
    rows: int  # that a block takes
    k_chunks: int  # that their K is cut into
    corrects_bias: bool  # its scales make up for what tensor cores cut off of sums: split.cu

    @classmethod
    def of(cls, split: Split, operands: Sequence[Split], scheme: Scheme) -> "OperandConstants":
        terms, matrix, row_block = split.terms, split.terms.matrix, split.findings.row_block
        return cls(
            Source=CUDA_TYPES[matrix.dtype],
            terms=scheme.terms_of(matrix.dtype),
            mn_major=terms.mn_major,
            access=Access.of(matrix.transposed if terms.mn_major else matrix),
            rows=row_block.rows,
            k_chunks=row_block.k_chunks,
            corrects_bias=not scheme.full_range and _corrects_bias(split, operands),
        )


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of split.cu."""

    full_range: bool
    finds_extents: bool
    operands: int
    batch_dims: int
    max_rows: int = MAX_ROWS
    a_is_rs: bool
    a_parts: int
    blocks_per_sm: int
    a: OperandConstants
    b: OperandConstants  # those of A if there is no other operand


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
    depth: Int32
    term_depth: Int32  # the depth of a term, with its padding
    k_chunk_depth: Int32  # what a block has of it
    k_chunk_pitch: Int32  # of the K chunks' exponents
    row_blocks: UInt32  # of rows, in one matrix
    tasks: UInt32  # row blocks of all matrices
    scale_pitch: Int32
    first_block: UInt32  # that has a task
    batch_size: UInt32s

    @classmethod
    def of(cls, split: Split, batch: Sequence[int], first_block: int) -> "Operand":
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
            depth=matrix.columns,
            term_depth=terms.term_depth,
            k_chunk_depth=round_up(math.ceil(terms.term_depth / row_block.k_chunks), TILE_K),
            k_chunk_pitch=scales.k_chunk_pitch,
            row_blocks=row_blocks,
            tasks=row_blocks * math.prod(n for n, _ in moving),
            scale_pitch=scales.pitch,
            first_block=first_block,
            batch_size=tuple(size for size, _ in moving),
        )


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of split.cu."""

    operands: tuple[Operand, ...]
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
    operands: list[Operand] = []
    busy = 0  # blocks that have a task more than the others
    for each in splits:
        operands.append(Operand.of(each, batch, busy))
        busy = (busy + operands[-1].tasks * each.findings.row_block.k_chunks) % blocks
    parameters = Parameters(
        operands=tuple(operands),
        range_check=None if range_check is None else Address("workspace", range_check),
        row_groups=first.findings.blocks,
        b_range_stats_count=last.findings.blocks,
    )
    constants = Constants(
        full_range=scheme.full_range,
        finds_extents=first.findings.extents is not None and not scheme.full_range,
        operands=len(splits),
        batch_dims=len(batch),
        a_is_rs=first.findings.rs_parts > 0,
        a_parts=first.findings.rs_parts or first.findings.row_block.k_chunks,
        blocks_per_sm=_FULL_RANGE_BLOCKS_PER_SM if scheme.full_range else BLOCKS_PER_SM,
        a=OperandConstants.of(first, splits, scheme),
        b=OperandConstants.of(last, splits, scheme),
    )
    return KernelLaunch(
        Kernel.of("split", "kernels/fp32_split/split.cu", constants, parameters, threads=_THREADS),
        parameters,
        grid=(blocks, 1, 1),
        awaits_predecessor=True,
    )


def _corrects_bias(split: Split, operands: Sequence[Split]) -> bool:
    """Whether the scales of this operand make up for what tensor cores cut off of sums: see split.cu. It is B, packed
    or not, if it has several terms; but A, if B is split by the product, which reads its scales as powers of two."""
    if split.terms.terms == 1 or split.findings.rs_parts:
        return False
    return split.source == "b" or any(each.findings.rs_parts for each in operands)
