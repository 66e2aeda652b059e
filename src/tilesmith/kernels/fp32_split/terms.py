"""float32 operands as sums of 16-bit terms, in the workspace or packed beforehand: kernels/split.cu."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K, Buffer
from tilesmith.core.problem import Matrix
from tilesmith.kernels.operand import (
    WORKSPACE_ALIGNMENT,
    Operand,
    different_matrices,
    packed_batch_strides,
    round_up,
    runs_along_rows,
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """The terms of an operand."""

    dtype: torch.dtype
    terms: int
    full_range: bool  # keeps float32's whole range, infinities and NaNs included

    @property
    def stored(self) -> int:
        return self.terms + self.full_range  # see split.cu

    def of(self, dtype: torch.dtype) -> "Scheme":
        """For an operand of this type: 16-bit numbers that are ordinary fit in one term."""
        return self if self.terms_of(dtype) == self.terms else replace(self, terms=1)

    def terms_of(self, dtype: torch.dtype) -> int:
        return self.terms if dtype == torch.float32 or self.full_range else 1


@dataclass(frozen=True, slots=True)
class Schemes:
    """For values that scaled float16 terms can represent, and for all others. The GPU decides which of them runs."""

    ordinary: Scheme
    full_range: Scheme


SCHEMES: Final = {
    "fp32": Schemes(Scheme(torch.float16, 2, full_range=False), Scheme(torch.bfloat16, 3, full_range=True)),
    "tf32": Schemes(Scheme(torch.float16, 1, full_range=False), Scheme(torch.bfloat16, 2, full_range=True)),
}

SHORT_K: Final = 512  # in sums up to this, what two terms leave out may be more than what torch rounds off
_SCALE_PADDING: Final = 256  # rows past the last one that a tile may ask for

BLOCKS_PER_SM: Final = 3
MAX_ROWS: Final = 64
SAMPLED_ROWS: Final = 8
_MANY_ROWS: Final = (32, 16, 8, 4, 2)  # of a block, if there are enough for all
_FEW_ROWS: Final = (1, 8)  # if there are not: of long lines, and of short ones
MAX_PARTS: Final = 128  # of K, that count apart
_MIN_OF_A_TASK: Final = 4096  # values that are worth a block
_MAX_OF_A_TASK: Final = 16384
_MANY_TASKS: Final = 1024  # enough for all blocks
_RANGE_STATS_BYTES: Final = 16
EXTENT_BYTES: Final = 8
_ROWS_OF_RANGE_STATS: Final = 16  # of a warp: keep_range_stats in hopper/consume_rs.cuh


class Scales(NamedTuple):
    """Arrays with a number for each row of an operand (for B: each column), matrix after matrix."""

    factors: int  # offset: what undoes the scale
    full_range_exponents: int  # offset: the exponent of two that undoes the scale of full-range terms
    k_chunk_exponents: int  # offset: the same for every K chunk alone
    pitch: int  # from one matrix to the next
    k_chunk_pitch: int  # from one K chunk to the next
    end: int

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int], offset: int, k_chunks: int) -> "Scales":
        pitch = scale_pitch(matrix.rows)
        _, total = packed_batch_strides(matrix, batch, pitch)
        total = round_up(total, WORKSPACE_ALIGNMENT // 4)
        # With one K chunk, its exponents are the ones.
        third = 1 if k_chunks == 1 else 2
        step = 4 * total
        return cls(offset, offset + step, offset + third * step, pitch, total, offset + (2 + k_chunks) * step)


def scale_pitch(rows: int) -> int:
    """From the scales of one matrix to those of the next."""
    return round_up(rows, 64) + _SCALE_PADDING


class Findings(NamedTuple):
    """What the split finds out about the values of an operand."""

    buffer: Buffer
    range_stats: int  # offset: one of each block that split it
    blocks: int
    row_block: "RowBlock"
    scales: Scales
    extents: int | None = None  # offset: of every row block and K chunk, the part of K that is not zero
    # If the product splits the operand itself: the parts of K that it counts apart. The range statistics then are of
    # groups of rows, `blocks` of them, one for every part.
    rs_parts: int = 0

    @classmethod
    def packed(cls, matrix: Matrix, batch: Sequence[int], buffer: Buffer, device: Device) -> "Findings":
        """At the start of a packed operand's buffer."""
        row_block = RowBlock.of(matrix, batch)
        blocks = split_blocks([row_block], device)
        first = round_up(blocks * _RANGE_STATS_BYTES, WORKSPACE_ALIGNMENT)
        return cls(buffer, 0, blocks, row_block, Scales.of(matrix, batch, first, row_block.k_chunks))


def terms_of(matrix: Matrix, batch: Sequence[int], scheme: Scheme, buffer: Buffer, offset: int) -> tuple[Operand, int]:
    """The terms of an operand as split.cu writes them to a buffer, from `offset` on, and how many elements that are."""
    rows, mn_major, stored = matrix.rows, runs_along_rows(matrix), scheme.of(matrix.dtype).stored
    term_depth = round_up(matrix.columns, TILE_K)
    depth = stored * term_depth
    pitch = round_up(rows, 8 if rows < 4 * TILE_K else TILE_K) if mn_major else depth
    elements = (depth if mn_major else rows) * pitch
    batch_strides, total = packed_batch_strides(matrix, batch, elements)
    terms = Operand(matrix, mn_major, buffer, offset, pitch, batch_strides, scheme.dtype, stored, term_depth)
    return terms, total


class Split(NamedTuple):
    """An operand, its terms, and what is known of its values."""

    source: Buffer
    terms: Operand
    findings: Findings
    end: int  # of the terms, in their buffer

    @classmethod
    def of(
        cls,
        matrix: Matrix,
        source: Buffer,
        batch: Sequence[int],
        scheme: Scheme,
        findings: Findings,
        buffer: Buffer,
        offset: int,
    ) -> "Split":
        """The operand as split.cu writes it to a buffer, from `offset` on."""
        terms, total = terms_of(matrix, batch, scheme, buffer, offset)
        elements = 0 if findings.rs_parts else total
        return cls(source, terms, findings, round_up(offset + elements * scheme.dtype.itemsize, WORKSPACE_ALIGNMENT))

    @classmethod
    def packed(
        cls, matrix: Matrix, source: Buffer, batch: Sequence[int], scheme: Scheme, buffer: Buffer, device: Device
    ) -> "Split":
        """The operand as `tilesmith.pack` keeps it: what is in the buffer, and where, depends on it alone."""
        findings = Findings.packed(matrix, batch, buffer, device)
        return cls.of(matrix, source, batch, scheme, findings, buffer, findings.scales.end)

    @property
    def matrix_steps(self) -> tuple[int, ...]:
        """From one index of a batch dimension to the next, in matrices."""
        strides = self.terms.batch_strides
        if not strides:
            return ()
        step = self.terms.matrix_elements
        return tuple([stride // step for stride in strides])


PACKED: Final[dict[Buffer, Buffer]] = {"a": "a_packed", "b": "b_packed"}


def find_pair(
    matrices: tuple[Matrix, Matrix],
    sources: tuple[Buffer, Buffer],
    batch: Sequence[int],
    offset: int,
    device: Device,
    *,
    rs_parts: int = 0,
    extents: bool = False,
) -> tuple[tuple[Findings, Findings], int]:
    """The findings of A and of B, and the end of what they take of the workspace from `offset` on: the range
    statistics, the range check, the scales, and the extents if asked for, except for what is packed. `rs_parts`: see
    Findings, for A."""
    row_blocks = [RowBlock.of(matrix, batch) for matrix in matrices]
    blocks = split_blocks([own for own, matrix in zip(row_blocks, matrices, strict=True) if not matrix.packed], device)
    range_stats, end = offset, round_up(offset + range_stats_bytes(device), WORKSPACE_ALIGNMENT)
    known: list[Findings] = []
    for matrix, source, own in zip(matrices, sources, row_blocks, strict=True):
        if matrix.packed:
            known.append(Findings.packed(matrix, batch, PACKED[source], device))
        elif rs_parts and not known:
            groups = math.ceil(matrix.rows / _ROWS_OF_RANGE_STATS) * math.prod(batch)
            first = round_up(end + groups * rs_parts * _RANGE_STATS_BYTES, WORKSPACE_ALIGNMENT)
            sampled = RowBlock(MAX_ROWS if runs_along_rows(matrix) else SAMPLED_ROWS, 1)  # a few values of each row
            scales = Scales.of(matrix, batch, first, rs_parts)
            known.append(Findings("workspace", end, groups, sampled, scales, rs_parts=rs_parts))
            end = scales.end
        else:
            scales = Scales.of(matrix, batch, end, own.k_chunks)
            known.append(Findings("workspace", range_stats, blocks, own, scales, scales.end if extents else None))
            range_stats, end = range_stats + blocks * _RANGE_STATS_BYTES, scales.end
            if extents:
                found = math.ceil(matrix.rows / own.rows) * own.k_chunks
                end = round_up(end + found * EXTENT_BYTES, WORKSPACE_ALIGNMENT)
    return (known[0], known[1]), end


def split_pair(
    matrices: tuple[Matrix, Matrix],
    sources: tuple[Buffer, Buffer],
    batch: Sequence[int],
    scheme: Scheme,
    known: tuple[Findings, Findings],
    offset: int,
    device: Device,
) -> tuple[tuple[Split, Split], int]:
    """A and B with their terms, and the end of what these take of the workspace from `offset` on. What is packed has
    those of the ordinary scheme already."""
    pair, end = list[Split](), offset
    for matrix, source, findings in zip(matrices, sources, known, strict=True):
        if matrix.packed and not scheme.full_range:
            pair.append(Split.packed(matrix, source, batch, scheme, findings.buffer, device))
        else:
            pair.append(Split.of(matrix, source, batch, scheme, findings, "workspace", end))
            end = pair[-1].end
    return (pair[0], pair[1]), end


def term_products(a_terms: int, b_terms: int) -> int:
    """How many products of terms are not too small together to count.

    >>> term_products(2, 2), term_products(3, 3), term_products(2, 1)
    (3, 6, 2)
    """
    most = max(a_terms, b_terms)
    return sum(min(b_terms, most - a) for a in range(a_terms))


def split_blocks(row_blocks: "Sequence[RowBlock]", device: Device) -> int:
    """The blocks that split operands, each of which counts for itself: as many for every K chunk."""
    max_k_chunks = max((each.k_chunks for each in row_blocks), default=1)
    return max(device.sm_count * BLOCKS_PER_SM // max_k_chunks, 1) * max_k_chunks


def range_stats_bytes(device: Device) -> int:
    """The bytes of the range statistics of both operands, and of the range check after them."""
    return range_check_offset(device) + _RANGE_STATS_BYTES


def range_check_offset(device: Device) -> int:
    return 2 * max(device.sm_count * BLOCKS_PER_SM, MAX_PARTS) * _RANGE_STATS_BYTES


class RowBlock(NamedTuple):
    """The rows that a block of split.cu takes, and the parts that their K is cut into: powers of two."""

    rows: int
    k_chunks: int

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int]) -> "RowBlock":
        matrices = different_matrices(matrix.batch_strides, batch)
        return _row_block(runs_along_rows(matrix), matrix.rows, round_up(matrix.columns, TILE_K), matrices)


@lru_cache(maxsize=256)
def _row_block(along_rows: bool, rows: int, depth: int, matrices: int) -> RowBlock:
    def tasks(block_rows: int) -> int:
        return math.ceil(rows / block_rows) * matrices

    if along_rows:
        taken = MAX_ROWS
    else:
        # As many as a block has time for, if all blocks have some.
        fitting = (n for n in _MANY_ROWS if n * depth <= _MAX_OF_A_TASK and tasks(n) >= _MANY_TASKS)
        taken = next(fitting, _FEW_ROWS[0] if depth > 256 else _FEW_ROWS[1])
    most = min(taken * depth // _MIN_OF_A_TASK, _MANY_TASKS // tasks(taken), MAX_PARTS)
    return RowBlock(taken, 1 << max(most.bit_length() - 1, 0))
