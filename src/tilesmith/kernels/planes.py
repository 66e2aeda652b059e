"""float32 operands as sums of 16-bit planes, in the workspace or packed beforehand: kernels/split.cu."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels.operand import (
    CUDA_TYPES,
    TILE_K,
    WORKSPACE_ALIGNMENT,
    Operand,
    aligned_lines,
    moving_batch,
    packed_batch_strides,
    round_up,
    runs_along_rows,
)
from tilesmith.plan import Address, Buffer, Constant, Kernel, Stage
from tilesmith.problem import Matrix


@dataclass(frozen=True, slots=True)
class Scheme:
    """The planes of an operand."""

    dtype: torch.dtype
    planes: int
    wide: bool  # keeps float32's whole range, infinities and NaNs included

    @property
    def stored(self) -> int:
        return self.planes + self.wide  # see split.cu

    def of(self, dtype: torch.dtype) -> "Scheme":
        """For an operand of this type: 16-bit numbers that are ordinary fit in one plane."""
        return self if dtype == torch.float32 or self.wide else replace(self, planes=1)


@dataclass(frozen=True, slots=True)
class Schemes:
    """For values that scaled float16 planes can represent, and for all others. The GPU decides which of them runs."""

    ordinary: Scheme
    wide: Scheme


SCHEMES: Final = {
    "fp32": Schemes(Scheme(torch.float16, 2, wide=False), Scheme(torch.bfloat16, 3, wide=True)),
    "tf32": Schemes(Scheme(torch.float16, 1, wide=False), Scheme(torch.bfloat16, 2, wide=True)),
}

_SCALE_PADDING: Final = 256  # rows past the last one that a tile may ask for

# Of kernels/split.cu.
_THREADS: Final = 256
_BLOCKS_PER_SM: Final = 3
_WIDE_BLOCKS_PER_SM: Final = 2  # few, since as a rule they have nothing to do
_MOST_ROWS: Final = 64
_SAMPLED_ROWS: Final = 8
_MOST_SLABS: Final = 128
_LEAST_OF_A_TASK: Final = 4096  # values that are worth a block
_MOST_OF_A_TASK: Final = 16384
_MANY_TASKS: Final = 1024  # enough for all blocks
_CENSUS_BYTES: Final = 16
EXTENT_BYTES: Final = 8
_ROWS_OF_A_CENSUS: Final = 16  # group in keep_census of kernels/sm90/consume_raw.cuh


@dataclass(frozen=True, slots=True)
class Scales:
    """Arrays with a number for each row of an operand (for B: each column), matrix after matrix."""

    factors: int  # offset: what undoes the scale
    wide_exponents: int  # offset: the exponent of two that undoes the scale of wide planes
    slab_exponents: int  # offset: the same for every slab alone
    pitch: int  # from one matrix to the next
    slab_pitch: int  # from one slab to the next
    end: int

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int], offset: int, raw_parts: int = 0) -> "Scales":
        pitch = scale_pitch(matrix.rows)
        _, total = packed_batch_strides(matrix, batch, pitch)
        total = round_up(total, WORKSPACE_ALIGNMENT // 4)
        slabs = raw_parts or _Strip.of(matrix, batch).slabs
        # With one slab, its exponents are the ones.
        first, second, third, end = (offset + 4 * total * i for i in (0, 1, 1 if slabs == 1 else 2, 2 + slabs))
        return cls(first, second, third, pitch, total, end)


def scale_pitch(rows: int) -> int:
    """From the scales of one matrix to those of the next."""
    return round_up(rows, 64) + _SCALE_PADDING


@dataclass(frozen=True, slots=True)
class Findings:
    """What the split finds out about the values of an operand."""

    buffer: Buffer
    censuses: int  # offset: one of each block that split it
    blocks: int
    scales: Scales
    extents: int | None = None  # offset: of every strip of rows and slab, the part of K that is not zero
    # If the product splits the operand itself: the parts of K that it counts apart. The censuses then are of groups of
    # rows, `blocks` of them, one for every part.
    raw_parts: int = 0

    @classmethod
    def packed(cls, matrix: Matrix, batch: Sequence[int], buffer: Buffer, device: Device) -> "Findings":
        """At the start of a packed operand's buffer."""
        blocks = split_blocks([matrix], batch, device)
        return cls(buffer, 0, blocks, Scales.of(matrix, batch, round_up(blocks * _CENSUS_BYTES, WORKSPACE_ALIGNMENT)))


@dataclass(frozen=True, slots=True)
class Split:
    """An operand, its planes, and what is known of its values."""

    source: Buffer
    planes: Operand
    findings: Findings
    end: int  # of the planes, in their buffer

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
        plane_depth = round_up(matrix.columns, TILE_K)
        depth = scheme.stored * plane_depth
        pitch = round_up(matrix.rows, 8 if matrix.rows < 4 * TILE_K else TILE_K) if mn_major else depth
        elements = (depth if mn_major else matrix.rows) * pitch
        batch_strides, total = packed_batch_strides(matrix, batch, elements)
        planes = Operand(
            matrix, mn_major, buffer, offset, pitch, batch_strides, scheme.dtype, scheme.stored, plane_depth
        )
        elements = 0 if findings.raw_parts else total
        return cls(source, planes, findings, round_up(offset + elements * scheme.dtype.itemsize, WORKSPACE_ALIGNMENT))

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
        step = self.planes.matrix_elements
        return tuple(stride // step for stride in self.planes.batch_strides)


_PACKED: Final[dict[Buffer, Buffer]] = {"a": "a_packed", "b": "b_packed"}


def split_pair(
    matrices: tuple[Matrix, Matrix],
    sources: tuple[Buffer, Buffer],
    batch: Sequence[int],
    scheme: Scheme,
    offset: int,
    device: Device,
    *,
    raw_parts: int = 0,
    extents: bool = False,
) -> tuple[tuple[Split, Split], int]:
    """A and B, and the end of what they take of the workspace from `offset` on: the censuses, the verdict, the scales,
    the extents if asked for, and the planes, except for what is packed. `raw_parts`: see Findings, for A."""
    blocks = split_blocks([matrix for matrix in matrices if not matrix.packed], batch, device)
    census, end = offset, round_up(offset + census_bytes(device), WORKSPACE_ALIGNMENT)
    known: list[Findings] = []
    for matrix, source in zip(matrices, sources, strict=True):
        if matrix.packed:
            known.append(Findings.packed(matrix, batch, _PACKED[source], device))
        elif raw_parts and not known:
            groups = math.ceil(matrix.rows / _ROWS_OF_A_CENSUS) * math.prod(batch)
            scales = Scales.of(
                matrix, batch, round_up(end + groups * raw_parts * _CENSUS_BYTES, WORKSPACE_ALIGNMENT), raw_parts
            )
            known.append(Findings("workspace", end, groups, scales, raw_parts=raw_parts))
            end = scales.end
        else:
            scales = Scales.of(matrix, batch, end)
            known.append(Findings("workspace", census, blocks, scales, scales.end if extents else None))
            census, end = census + blocks * _CENSUS_BYTES, scales.end
            if extents:
                end = round_up(end + strips(matrix) * slabs(matrix, batch) * EXTENT_BYTES, WORKSPACE_ALIGNMENT)
    pair: list[Split] = []
    for matrix, source, findings in zip(matrices, sources, known, strict=True):
        if matrix.packed and not scheme.wide:
            pair.append(Split.packed(matrix, source, batch, scheme, findings.buffer, device))
        else:
            pair.append(Split.of(matrix, source, batch, scheme, findings, "workspace", end))
            end = pair[-1].end
    return (pair[0], pair[1]), end


def products_of_planes(a_planes: int, b_planes: int) -> int:
    """Of those that are not too small together to count.

    >>> products_of_planes(2, 2), products_of_planes(3, 3), products_of_planes(2, 1)
    (3, 6, 2)
    """
    most = max(a_planes, b_planes)
    return sum(min(b_planes, most - a) for a in range(a_planes))


def slabs(matrix: Matrix, batch: Sequence[int]) -> int:
    """How many slabs the K of an operand is cut into."""
    return _Strip.of(matrix, batch).slabs


def strip_rows(matrix: Matrix, batch: Sequence[int] = ()) -> int:
    """The rows that a block splits at a time."""
    return _Strip.of(matrix, batch).rows


def strips(matrix: Matrix) -> int:
    """The strips of rows of an operand that is one matrix."""
    return math.ceil(matrix.rows / strip_rows(matrix))


def split_blocks(matrices: Sequence[Matrix], batch: Sequence[int], device: Device) -> int:
    """The blocks that split these, each of which counts for itself: as many for every slab."""
    most_slabs = max((slabs(matrix, batch) for matrix in matrices), default=1)
    return max(device.sm_count * _BLOCKS_PER_SM // most_slabs, 1) * most_slabs


def census_bytes(device: Device) -> int:
    """Of the censuses of both operands, and of the verdict after them."""
    return verdict_offset(device) + _CENSUS_BYTES


def verdict_offset(device: Device) -> int:
    return 2 * max(device.sm_count * _BLOCKS_PER_SM, _MOST_SLABS) * _CENSUS_BYTES


def split_stage(
    operands: Sequence[Split], scheme: Scheme, verdict: int | None, batch: Sequence[int], device: Device
) -> Stage:
    """The launch that splits one or two operands and takes the census; or, if the scheme is wide, asks first for the
    verdict, at an offset in the workspace."""
    constants: dict[str, Constant] = {
        "wide": scheme.wide,
        "finds_extents": operands[0].findings.extents is not None and not scheme.wide,
        "operands": len(operands),
        "batch_rank": len(batch),
        "a_is_raw": operands[0].findings.raw_parts > 0,
        "a_parts": operands[0].findings.raw_parts or slabs(operands[0].planes.matrix, batch),
        "threads": _THREADS,
        "blocks_per_sm": _WIDE_BLOCKS_PER_SM if scheme.wide else _BLOCKS_PER_SM,
    }
    arguments, addresses = b"", []
    blocks = split_blocks([each.planes.matrix for each in operands], batch, device)
    busy = 0  # blocks that have a task more than the others
    for name, each in zip("ab", operands, strict=False):
        planes, matrix = each.planes, each.planes.matrix
        strip = _Strip.of_split(each, batch)
        of_operand: dict[str, Constant] = {
            f"{name}_source": CUDA_TYPES[matrix.dtype],
            f"{name}_planes": scheme.of(matrix.dtype).planes,
            f"{name}_mn_major": planes.mn_major,
            f"{name}_access": int(_Access.of(matrix.transposed if planes.mn_major else matrix)),
            f"{name}_rows": strip.rows,
            f"{name}_slabs": strip.slabs,
            f"{name}_makes_up": not scheme.wide and _makes_up(each, operands),
        }
        constants |= of_operand
        position = len(arguments)
        scales, kept = each.findings.scales, each.findings.buffer
        addresses += [
            Address(position, each.source),
            Address(position + 8, planes.buffer, planes.offset),
            Address(position + 16, kept, scales.factors),
            Address(position + 24, kept, scales.wide_exponents),
            Address(position + 32, kept, scales.slab_exponents),
            Address(position + 40, kept, each.findings.censuses),
            Address(position + 48, kept, each.findings.extents or 0),
        ]
        moving = moving_batch(matrix, batch)
        matrices = math.prod(n for n, _ in moving)
        count = math.ceil(matrix.rows / strip.rows)
        arguments += struct.pack(
            "<14q12i",
            *(0, 0, 0, 0, 0, 0, 0),  # addresses
            *(matrix.row_stride, matrix.column_stride),
            *(stride for _, stride in moving),
            *(planes.line_stride, planes.matrix_elements),
            *(matrix.rows, matrix.columns, planes.plane_depth),
            round_up(math.ceil(planes.plane_depth / strip.slabs), TILE_K),
            scales.slab_pitch,
            *(count, count * matrices),
            scales.pitch,
            busy,
            *(size for size, _ in moving),
        )
        busy = (busy + count * matrices * strip.slabs) % blocks
    if len(operands) == 1:  # the names of a second one must be there
        constants |= {name.replace("a_", "b_", 1): value for name, value in of_operand.items()}
    if verdict is not None:
        addresses.append(Address(len(arguments), "workspace", verdict))
    arguments += struct.pack("<8x2i", *(each.findings.blocks for each in (operands[0], operands[-1])))
    constants["parameter_bytes"] = len(arguments)
    return Stage(
        kernel=Kernel("split", "kernels/split.cu", tuple(constants.items()), 0),
        grid=(blocks, 1, 1),
        threads=_THREADS,
        arguments=arguments,
        addresses=tuple(addresses),
        awaits_predecessor=True,
    )


def _makes_up(split: Split, operands: Sequence[Split]) -> bool:
    """Whether the scales of this operand make up for what tensor cores cut off of sums: see split.cu. It is B, packed
    or not, if it has several planes; but A, if B is split by the product, which reads its scales as powers of two."""
    if split.planes.planes == 1 or split.findings.raw_parts:
        return False
    return split.source == "b" or any(each.findings.raw_parts for each in operands)


class _Access(IntEnum):
    """enum Access of split.cu."""

    VECTORS = 0
    ELEMENTS = 1
    STRIDED = 2

    @classmethod
    def of(cls, lines: Matrix) -> "_Access":
        if aligned_lines(lines):
            return cls.VECTORS
        return cls.ELEMENTS if lines.columns == 1 or lines.column_stride == 1 else cls.STRIDED


@dataclass(frozen=True, slots=True)
class _Strip:
    """struct Strip of split.cu: the rows that a block takes, and the parts that their K is cut into."""

    rows: int
    slabs: int

    @classmethod
    def of_split(cls, split: Split, batch: Sequence[int]) -> "_Strip":
        matrix = split.planes.matrix
        if split.findings.raw_parts:  # a few values of each row are read
            return cls(_MOST_ROWS if runs_along_rows(matrix) else _SAMPLED_ROWS, 1)
        return cls.of(matrix, batch)

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int]) -> "_Strip":
        depth = round_up(matrix.columns, TILE_K)
        matrices = math.prod(n for n, _ in moving_batch(matrix, batch))

        def tasks(rows: int) -> int:
            return math.ceil(matrix.rows / rows) * matrices

        if runs_along_rows(matrix):
            rows = _MOST_ROWS
        else:
            # As many as a block has time for, if all blocks have some.
            fitting = (n for n in (32, 16, 8, 4, 2) if n * depth <= _MOST_OF_A_TASK and tasks(n) >= _MANY_TASKS)
            rows = next(fitting, 1 if depth > 256 else 8)
        most = min(rows * depth // _LEAST_OF_A_TASK, _MANY_TASKS // tasks(rows), _MOST_SLABS)
        return cls(rows, 1 << max(most.bit_length() - 1, 0))
