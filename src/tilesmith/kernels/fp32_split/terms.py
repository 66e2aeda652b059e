"""float32 operands as sums of 16-bit terms, in the workspace or packed beforehand: kernels/split.cu."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K, Buffer
from tilesmith.core.problem import Matrix
from tilesmith.kernels.operand import (
    WORKSPACE_ALIGNMENT,
    Operand,
    moving_batch,
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
        return self if dtype == torch.float32 or self.full_range else replace(self, terms=1)


@dataclass(frozen=True, slots=True)
class Schemes:
    """For values that scaled float16 terms can represent, and for all others. The GPU decides which of them runs."""

    ordinary: Scheme
    full_range: Scheme


SCHEMES: Final = {
    "fp32": Schemes(Scheme(torch.float16, 2, full_range=False), Scheme(torch.bfloat16, 3, full_range=True)),
    "tf32": Schemes(Scheme(torch.float16, 1, full_range=False), Scheme(torch.bfloat16, 2, full_range=True)),
}

_SCALE_PADDING: Final = 256  # rows past the last one that a tile may ask for

BLOCKS_PER_SM: Final = 3
MAX_ROWS: Final = 64
_SAMPLED_ROWS: Final = 8
_MAX_K_CHUNKS: Final = 128
_MIN_OF_A_TASK: Final = 4096  # values that are worth a block
_MAX_OF_A_TASK: Final = 16384
_MANY_TASKS: Final = 1024  # enough for all blocks
_RANGE_STATS_BYTES: Final = 16
EXTENT_BYTES: Final = 8
_ROWS_OF_RANGE_STATS: Final = 16  # of a warp: keep_range_stats in hopper/consume_rs.cuh


@dataclass(frozen=True, slots=True)
class Scales:
    """Arrays with a number for each row of an operand (for B: each column), matrix after matrix."""

    factors: int  # offset: what undoes the scale
    full_range_exponents: int  # offset: the exponent of two that undoes the scale of full-range terms
    k_chunk_exponents: int  # offset: the same for every K chunk alone
    pitch: int  # from one matrix to the next
    k_chunk_pitch: int  # from one K chunk to the next
    end: int

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int], offset: int, rs_parts: int = 0) -> "Scales":
        pitch = scale_pitch(matrix.rows)
        _, total = packed_batch_strides(matrix, batch, pitch)
        total = round_up(total, WORKSPACE_ALIGNMENT // 4)
        k_chunks = rs_parts or RowBlock.of(matrix, batch).k_chunks
        # With one K chunk, its exponents are the ones.
        first, second, third, end = (offset + 4 * total * i for i in (0, 1, 1 if k_chunks == 1 else 2, 2 + k_chunks))
        return cls(first, second, third, pitch, total, end)


def scale_pitch(rows: int) -> int:
    """From the scales of one matrix to those of the next."""
    return round_up(rows, 64) + _SCALE_PADDING


@dataclass(frozen=True, slots=True)
class Findings:
    """What the split finds out about the values of an operand."""

    buffer: Buffer
    range_stats: int  # offset: one of each block that split it
    blocks: int
    scales: Scales
    extents: int | None = None  # offset: of every row block and K chunk, the part of K that is not zero
    # If the product splits the operand itself: the parts of K that it counts apart. The range statistics then are of
    # groups of rows, `blocks` of them, one for every part.
    rs_parts: int = 0

    @classmethod
    def packed(cls, matrix: Matrix, batch: Sequence[int], buffer: Buffer, device: Device) -> "Findings":
        """At the start of a packed operand's buffer."""
        blocks = split_blocks([matrix], batch, device)
        return cls(
            buffer, 0, blocks, Scales.of(matrix, batch, round_up(blocks * _RANGE_STATS_BYTES, WORKSPACE_ALIGNMENT))
        )


@dataclass(frozen=True, slots=True)
class Split:
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
        scheme = scheme.of(matrix.dtype)
        mn_major = runs_along_rows(matrix)
        term_depth = round_up(matrix.columns, TILE_K)
        depth = scheme.stored * term_depth
        pitch = round_up(matrix.rows, 8 if matrix.rows < 4 * TILE_K else TILE_K) if mn_major else depth
        elements = (depth if mn_major else matrix.rows) * pitch
        batch_strides, total = packed_batch_strides(matrix, batch, elements)
        terms = Operand(matrix, mn_major, buffer, offset, pitch, batch_strides, scheme.dtype, scheme.stored, term_depth)
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
        step = self.terms.matrix_elements
        return tuple(stride // step for stride in self.terms.batch_strides)


_PACKED: Final[dict[Buffer, Buffer]] = {"a": "a_packed", "b": "b_packed"}


def split_pair(
    matrices: tuple[Matrix, Matrix],
    sources: tuple[Buffer, Buffer],
    batch: Sequence[int],
    scheme: Scheme,
    offset: int,
    device: Device,
    *,
    rs_parts: int = 0,
    extents: bool = False,
) -> tuple[tuple[Split, Split], int]:
    """A and B, and the end of what they take of the workspace from `offset` on: the range statistics, the range check,
    the scales, the extents if asked for, and the terms, except for what is packed. `rs_parts`: see Findings, for A."""
    blocks = split_blocks([matrix for matrix in matrices if not matrix.packed], batch, device)
    range_stats, end = offset, round_up(offset + range_stats_bytes(device), WORKSPACE_ALIGNMENT)
    known: list[Findings] = []
    for matrix, source in zip(matrices, sources, strict=True):
        if matrix.packed:
            known.append(Findings.packed(matrix, batch, _PACKED[source], device))
        elif rs_parts and not known:
            groups = math.ceil(matrix.rows / _ROWS_OF_RANGE_STATS) * math.prod(batch)
            scales = Scales.of(
                matrix, batch, round_up(end + groups * rs_parts * _RANGE_STATS_BYTES, WORKSPACE_ALIGNMENT), rs_parts
            )
            known.append(Findings("workspace", end, groups, scales, rs_parts=rs_parts))
            end = scales.end
        else:
            scales = Scales.of(matrix, batch, end)
            known.append(Findings("workspace", range_stats, blocks, scales, scales.end if extents else None))
            range_stats, end = range_stats + blocks * _RANGE_STATS_BYTES, scales.end
            if extents:
                end = round_up(end + row_blocks(matrix) * k_chunks(matrix, batch) * EXTENT_BYTES, WORKSPACE_ALIGNMENT)
    pair: list[Split] = []
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


def k_chunks(matrix: Matrix, batch: Sequence[int]) -> int:
    """How many K chunks the K of an operand is cut into."""
    return RowBlock.of(matrix, batch).k_chunks


def block_rows(matrix: Matrix, batch: Sequence[int] = ()) -> int:
    """The rows that a block splits at a time."""
    return RowBlock.of(matrix, batch).rows


def row_blocks(matrix: Matrix) -> int:
    """The row blocks of an operand that is one matrix."""
    return math.ceil(matrix.rows / block_rows(matrix))


def split_blocks(matrices: Sequence[Matrix], batch: Sequence[int], device: Device) -> int:
    """The blocks that split these, each of which counts for itself: as many for every K chunk."""
    max_k_chunks = max((k_chunks(matrix, batch) for matrix in matrices), default=1)
    return max(device.sm_count * BLOCKS_PER_SM // max_k_chunks, 1) * max_k_chunks


def range_stats_bytes(device: Device) -> int:
    """The bytes of the range statistics of both operands, and of the range check after them."""
    return range_check_offset(device) + _RANGE_STATS_BYTES


def range_check_offset(device: Device) -> int:
    return 2 * max(device.sm_count * BLOCKS_PER_SM, _MAX_K_CHUNKS) * _RANGE_STATS_BYTES


@dataclass(frozen=True, slots=True)
class RowBlock:
    """struct RowBlock of split.cu: the rows that a block takes, and the parts that their K is cut into."""

    rows: int
    k_chunks: int

    @classmethod
    def of_split(cls, split: Split, batch: Sequence[int]) -> "RowBlock":
        matrix = split.terms.matrix
        if split.findings.rs_parts:  # a few values of each row are read
            return cls(MAX_ROWS if runs_along_rows(matrix) else _SAMPLED_ROWS, 1)
        return cls.of(matrix, batch)

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int]) -> "RowBlock":
        depth = round_up(matrix.columns, TILE_K)
        matrices = math.prod(n for n, _ in moving_batch(matrix, batch))

        def tasks(rows: int) -> int:
            return math.ceil(matrix.rows / rows) * matrices

        if runs_along_rows(matrix):
            rows = MAX_ROWS
        else:
            # As many as a block has time for, if all blocks have some.
            fitting = (n for n in (32, 16, 8, 4, 2) if n * depth <= _MAX_OF_A_TASK and tasks(n) >= _MANY_TASKS)
            rows = next(fitting, 1 if depth > 256 else 8)
        most = min(rows * depth // _MIN_OF_A_TASK, _MANY_TASKS // tasks(rows), _MAX_K_CHUNKS)
        return cls(rows, 1 << max(most.bit_length() - 1, 0))
