"""float32 operands as sums of 16-bit planes in the workspace: kernels/split.cu."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.kernels.operand import (
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
_MOST_SLABS: Final = 128
_LEAST_OF_A_TASK: Final = 4096  # values that are worth a block
_MOST_OF_A_TASK: Final = 16384
_MANY_TASKS: Final = 1024  # enough for all blocks
_CENSUS_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Scales:
    """Arrays in the workspace with a number for each row of an operand (for B: each column), matrix after matrix."""

    factors: int  # offset: what undoes the scale
    wide_exponents: int  # offset: the exponent of two that undoes the scale of wide planes
    slab_exponents: int  # offset: the same for every slab alone
    pitch: int  # from one matrix to the next
    slab_pitch: int  # from one slab to the next
    end: int

    @classmethod
    def of(cls, matrix: Matrix, batch: Sequence[int], offset: int) -> "Scales":
        pitch = scale_pitch(matrix.rows)
        _, total = packed_batch_strides(matrix, batch, pitch)
        total = round_up(total, WORKSPACE_ALIGNMENT // 4)
        slabs = _Strip.of(matrix, batch).slabs
        # With one slab, its exponents are the ones.
        first, second, third, end = (offset + 4 * total * i for i in (0, 1, 1 if slabs == 1 else 2, 2 + slabs))
        return cls(first, second, third, pitch, total, end)


def scale_pitch(rows: int) -> int:
    """From the scales of one matrix to those of the next."""
    return round_up(rows, 64) + _SCALE_PADDING


@dataclass(frozen=True, slots=True)
class Split:
    """An operand, its planes, and the scales of its rows."""

    source: Buffer
    planes: Operand
    scales: Scales
    end: int  # of the planes, in the workspace

    @classmethod
    def of(
        cls, matrix: Matrix, source: Buffer, batch: Sequence[int], scheme: Scheme, scales: Scales, offset: int
    ) -> "Split":
        """The operand as split.cu writes it from `offset` on."""
        mn_major = runs_along_rows(matrix)
        plane_depth = round_up(matrix.columns, TILE_K)
        depth = scheme.stored * plane_depth
        pitch = round_up(matrix.rows, 8 if matrix.rows < 4 * TILE_K else TILE_K) if mn_major else depth
        elements = (depth if mn_major else matrix.rows) * pitch
        batch_strides, total = packed_batch_strides(matrix, batch, elements)
        planes = Operand(
            matrix, mn_major, "workspace", offset, pitch, batch_strides, scheme.dtype, scheme.stored, plane_depth
        )
        return cls(source, planes, scales, round_up(offset + total * scheme.dtype.itemsize, WORKSPACE_ALIGNMENT))

    @property
    def matrix_steps(self) -> tuple[int, ...]:
        """From one index of a batch dimension to the next, in matrices."""
        step = self.planes.matrix_elements
        return tuple(stride // step for stride in self.planes.batch_strides)


def slabs(matrix: Matrix, batch: Sequence[int]) -> int:
    """How many slabs the K of an operand is cut into."""
    return _Strip.of(matrix, batch).slabs


def census_blocks(operands: tuple[Split, Split], batch: Sequence[int], device: Device) -> int:
    """The blocks that split, each of which counts for itself: as many for every slab."""
    most_slabs = max(slabs(each.planes.matrix, batch) for each in operands)
    return max(device.sm_count * _BLOCKS_PER_SM // most_slabs, 1) * most_slabs


def census_bytes(device: Device) -> int:
    """Of the censuses of both operands, and of the verdict after them."""
    return verdict_offset(device) + _CENSUS_BYTES


def verdict_offset(device: Device) -> int:
    return 2 * max(device.sm_count * _BLOCKS_PER_SM, _MOST_SLABS) * _CENSUS_BYTES


def split_stage(
    operands: tuple[Split, Split], scheme: Scheme, census_offset: int, batch: Sequence[int], device: Device
) -> Stage:
    """The launch that splits A and B and takes the census; or, if the scheme is wide, asks for the verdict first."""
    constants: dict[str, Constant] = {
        "wide": scheme.wide,
        "planes": scheme.planes,
        "batch_rank": len(batch),
        "threads": _THREADS,
        "blocks_per_sm": _WIDE_BLOCKS_PER_SM if scheme.wide else _BLOCKS_PER_SM,
    }
    arguments, addresses = b"", []
    blocks = census_blocks(operands, batch, device)
    busy = 0  # blocks that have a task more than the others
    for name, each in zip("ab", operands, strict=True):
        planes, matrix = each.planes, each.planes.matrix
        strip = _Strip.of(matrix, batch)
        constants |= {
            f"{name}_mn_major": planes.mn_major,
            f"{name}_access": int(_Access.of(matrix.transposed if planes.mn_major else matrix)),
            f"{name}_rows": strip.rows,
            f"{name}_slabs": strip.slabs,
        }
        position = len(arguments)
        scales = each.scales
        offsets = (planes.offset, scales.factors, scales.wide_exponents, scales.slab_exponents)
        addresses += [
            Address(position, each.source),
            *(Address(position + 8 * i, "workspace", offset) for i, offset in enumerate(offsets, start=1)),
        ]
        moving = moving_batch(matrix, batch)
        matrices = math.prod(n for n, _ in moving)
        strips = math.ceil(matrix.rows / strip.rows)
        arguments += struct.pack(
            "<12q12i",
            *(0, 0, 0, 0, 0),  # addresses
            *(matrix.row_stride, matrix.column_stride),
            *(stride for _, stride in moving),
            *(planes.line_stride, planes.matrix_elements),
            *(matrix.rows, matrix.columns, planes.plane_depth),
            round_up(math.ceil(planes.plane_depth / strip.slabs), TILE_K),
            scales.slab_pitch,
            *(strips, strips * matrices),
            scales.pitch,
            busy,
            *(size for size, _ in moving),
        )
        busy = (busy + strips * matrices * strip.slabs) % blocks
    addresses += [
        Address(len(arguments), "workspace", census_offset),
        Address(len(arguments) + 8, "workspace", census_offset + verdict_offset(device)),
    ]
    arguments += bytes(16)
    constants["parameter_bytes"] = len(arguments)
    return Stage(
        kernel=Kernel("split", "kernels/split.cu", tuple(constants.items()), 0),
        grid=(blocks, 1, 1),
        threads=_THREADS,
        arguments=arguments,
        addresses=tuple(addresses),
        awaits_predecessor=True,
    )


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
