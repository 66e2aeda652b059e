"""Where the kernels of this folder read their operands, and how they copy them."""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from tilesmith.core.params import MAX_BATCH_DIMS, Address, Buffer
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels.operand import Operand, aligned_lines

_WORD: Final = 4  # bytes of the least copy that does not pass through registers


class Lines(NamedTuple):
    """How an operand is copied: along which direction, and how many bytes at a time."""

    along_k: bool
    copy_bytes: int

    @property
    def is_aligned(self) -> bool:
        return self.copy_bytes == ALIGNMENT

    @classmethod
    def of(cls, matrix: Matrix) -> "Lines":
        """For a matrix whose columns run along K."""
        along_k = matrix.row_stride != 1 and (matrix.column_stride == 1 or matrix.column_stride <= matrix.row_stride)
        lines, itemsize = matrix if along_k else matrix.transposed, matrix.dtype.itemsize
        widths = (ALIGNMENT, _WORD) if itemsize < _WORD else (ALIGNMENT,)
        return cls(along_k, next((width for width in widths if aligned_lines(lines, width)), itemsize))


def lines_of(problem: Problem) -> tuple[Lines, Lines]:
    """Those of A and B. A kernel that copies single 16-bit values of one does not copy pairs of the other."""
    a, b = Lines.of(problem.a), Lines.of(problem.b.transposed)
    widths = a.copy_bytes, b.copy_bytes
    if widths not in copy_widths(problem.a.dtype.itemsize):
        a, b = a._replace(copy_bytes=min(widths)), b._replace(copy_bytes=min(widths))
    return a, b


@cache
def copy_widths(itemsize: int) -> tuple[tuple[int, int], ...]:
    """The bytes of a copy of A and of B that kernels have, for operands of a type."""
    narrow = (itemsize,) if itemsize >= _WORD else (_WORD, itemsize)
    mixed = [widths for each in narrow for widths in ((each, ALIGNMENT), (ALIGNMENT, each), (each, each))]
    return (ALIGNMENT, ALIGNMENT), *mixed


class Placed(NamedTuple):
    """An operand as a kernel reads it."""

    address: Address
    stride_mn: int  # from a row of A to the next, or from a column of B
    stride_k: int
    batch_strides: tuple[int, ...]  # the fastest dimension first
    lines: Lines

    @classmethod
    def direct(cls, matrix: Matrix, buffer: Buffer, lines: Lines) -> "Placed":
        """Where it is. The matrix's columns run along K."""
        strides = matrix.row_stride, matrix.column_stride
        return cls(Address(buffer), *strides, fastest_first(matrix.batch_strides), lines)

    @classmethod
    def copied(cls, copy: Operand) -> "Placed":
        """What a launch has written before: its batch's fastest dimension is the first."""
        strides = (1, copy.line_stride) if copy.mn_major else (copy.line_stride, 1)
        batch_strides = copy.batch_strides + (0,) * (MAX_BATCH_DIMS - len(copy.batch_strides))
        return cls(Address(copy.buffer, copy.offset), *strides, batch_strides, Lines(not copy.mn_major, ALIGNMENT))


Pair = tuple[Placed, Placed]


def walked(matrix: Matrix) -> Matrix:
    """The matrix with its batch's fastest dimension first, as the launches that copy operands have it."""
    return matrix._replace(batch_strides=matrix.batch_strides[::-1])


def fastest_first(strides: Sequence[int]) -> tuple[int, ...]:
    return *reversed(strides), *(0,) * (MAX_BATCH_DIMS - len(strides))
