"""The launch that copies 16-bit operands whose strides TMA cannot take: realign.cu."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

from tilesmith.core.params import (
    MAX_BATCH_DIMS,
    Address,
    Buffer,
    Int32,
    Int64,
    Int64s,
    KernelConstants,
    ParameterBlock,
    Pointer,
    UInt32,
    UInt32s,
    to,
)
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.kernels.blank import blank
from tilesmith.kernels.operand import Operand, moving_batch

_THREADS: Final = 128
_VECTOR: Final = 8  # elements
_AT_ONCE: Final = 2  # vectors of a thread, so that their reads are under way together


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of realign.cu."""

    vector: int = _VECTOR
    at_once: int = _AT_ONCE


@dataclass(frozen=True, kw_only=True)
class Copy(ParameterBlock):
    """What is copied of one operand."""

    source: Annotated[Pointer, to("const unsigned short")]
    target: Annotated[Pointer, to("unsigned short")]
    line_stride: Int64  # of the source
    element_stride: Int64
    batch_stride: Int64s
    pitch: Int64  # of the lines of the copy
    lines: UInt32  # of one matrix
    vectors: UInt32  # of all lines of all matrices
    length: Int32
    vectors_of_line: UInt32
    batch_size: UInt32s

    @classmethod
    def of(cls, copy: Operand, source: Buffer, batch: Sequence[int]) -> "Copy":
        matrix = copy.matrix
        vectors_of_line = math.ceil(copy.length / _VECTOR)
        batch_size, batch_stride = moving_batch(matrix, batch)
        line_stride, element_stride = (
            (matrix.column_stride, matrix.row_stride) if copy.mn_major else (matrix.row_stride, matrix.column_stride)
        )
        return cls(
            source=Address(source),
            target=Address("workspace", copy.offset),
            line_stride=line_stride,
            element_stride=1 if copy.length == 1 else element_stride,
            batch_stride=batch_stride,
            pitch=copy.line_stride,
            lines=copy.lines,
            vectors=copy.lines * vectors_of_line * math.prod(batch_size),
            length=copy.length,
            vectors_of_line=vectors_of_line,
            batch_size=batch_size,
        )


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of realign.cu."""

    copies: tuple[Copy, ...]  # two; if there is but one, that twice, and it takes all blocks


def kernels() -> Iterator[Kernel]:
    """The one that there is."""
    yield _kernel()


@cache
def _kernel() -> Kernel:
    dims = (0,) * MAX_BATCH_DIMS
    copy = blank(Copy, batch_stride=dims, batch_size=dims)
    return Kernel.of("realign", "kernels/realign.cu", Constants(), Parameters(copies=(copy, copy)), threads=_THREADS)


def launch(copies: Sequence[tuple[Operand, Buffer]], batch: Sequence[int]) -> KernelLaunch:
    """The launch that makes the copies, each from a buffer."""
    return launch_of([Copy.of(copy, source, batch) for copy, source in copies])


def launch_of(own: Sequence[Copy]) -> KernelLaunch:
    """The launch that makes one copy or two."""
    parameters = Parameters(copies=(own[0], own[-1]))
    warps = sum(math.ceil(copy.vectors / (32 * _AT_ONCE)) for copy in own)
    return KernelLaunch(
        _kernel(),
        parameters,
        grid=(math.ceil(warps / (_THREADS // 32)), 1, 1),
        awaits_predecessor=True,
    )
