"""Operands as TMA reads them: where they are, or copied to the workspace."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K, Buffer, TensorMap
from tilesmith.core.problem import ALIGNMENT, Matrix

_MAX_STRIDE_BYTES: Final = 2**40
WORKSPACE_ALIGNMENT: Final = 256
_LINE_BYTES: Final = 128  # of a tile in shared memory, at most


class Operand(NamedTuple):
    """A batch of matrices made of contiguous lines, which run along K or along M (N for B)."""

    matrix: Matrix  # as it was given, its columns along K
    mn_major: bool
    buffer: Buffer
    offset: int  # bytes into the buffer
    line_stride: int  # elements
    batch_strides: tuple[int, ...]  # elements; 0 where all matrices of the batch are one
    dtype: torch.dtype
    terms: int = 1  # whose sum the matrix is, one behind the other along K
    term_depth: int = 0  # K of each of several terms

    @property
    def is_copy(self) -> bool:
        return self.buffer == "workspace"

    @property
    def depth(self) -> int:
        """The size along K."""
        return self.terms * self.term_depth or self.matrix.columns

    @property
    def length(self) -> int:
        return self.matrix.rows if self.mn_major else self.depth

    @property
    def lines(self) -> int:
        return self.depth if self.mn_major else self.matrix.rows

    @property
    def matrix_elements(self) -> int:
        """The elements of a copy of one matrix."""
        return self.lines * self.line_stride

    @property
    def straddles(self) -> bool:
        """Lines of a tile are parts of two lines of L2."""
        return self.lines > 1 and self.line_stride % self._widest != 0

    @property
    def _widest(self) -> int:
        """Elements of the max_line line in shared memory."""
        return _LINE_BYTES // self.dtype.itemsize

    def atom_width(self, extent: int) -> int:
        return atom_width(self.mn_major, self.dtype.itemsize, extent)

    def tile_lines(self, extent: int) -> int:
        """The lines of a swizzle atom of a tile."""
        return TILE_K if self.mn_major else extent

    def bytes(self, batch: Sequence[int]) -> int:
        """The elements of all different matrices, in bytes."""
        return self.matrix.rows * self.depth * different_matrices(self.batch_strides, batch) * self.dtype.itemsize

    def tensor_map(self, extent: int, sharers: int, batch: Sequence[int], dims: int) -> TensorMap:
        """For tiles of `extent` rows that `sharers` blocks load together, by a kernel that walks `dims` dimensions of a
        batch."""
        size, rows, depth = self.dtype.itemsize, self.matrix.rows, self.depth
        length, lines = (rows, depth) if self.mn_major else (depth, rows)
        width = atom_width(self.mn_major, size, extent)
        line_stride = self.line_stride or round_up(length, ALIGNMENT // size)
        sizes: tuple[int, ...] = length, lines
        strides: tuple[int, ...] = (line_stride * size,)
        box: tuple[int, ...] = width, self.tile_lines(extent) // sharers
        if dims and not batch:
            sizes, strides, box = sizes + (1,) * dims, strides + (ALIGNMENT * size,) * dims, box + (1,) * dims
        elif dims:
            # A broadcast dimension has one matrix, where the kernel stays. Strides that are never walked must be legal.
            moving = [(n, s) if s else (1, ALIGNMENT) for n, s in zip(batch, self.batch_strides, strict=True)]
            moving += [(1, ALIGNMENT)] * (dims - len(moving))
            sizes += tuple([n for n, _ in moving])
            strides += tuple([stride * size for _, stride in moving])
            box += (1,) * len(moving)
        return TensorMap(self.buffer, self.offset, self.dtype, sizes, strides, box, width * size)


def atom_width(mn_major: bool, itemsize: int, extent: int) -> int:
    """The length of a line in shared memory: atom_width in tile.cuh, and its static_assert; of float32, line in
    hopper/fp32_tile.cuh. 0 if a tile of this extent has none."""
    widest = _LINE_BYTES // itemsize
    if not mn_major:
        return widest
    return next((width for width in (64, 32, 16) if width <= widest and extent % width == 0), 0)


def direct(matrix: Matrix, buffer: Buffer) -> Operand | None:
    """The operand as it lies, if TMA can read it there."""
    return _direct(matrix, buffer, mn_major=False) or _direct(matrix, buffer, mn_major=True)


def _direct(matrix: Matrix, buffer: Buffer, *, mn_major: bool) -> Operand | None:
    lines = matrix.transposed if mn_major else matrix
    if not aligned_lines(lines):
        return None
    most = max(0 if lines.rows == 1 else lines.row_stride, *matrix.batch_strides, 0)
    if most * matrix.dtype.itemsize >= _MAX_STRIDE_BYTES:
        return None
    return Operand(matrix, mn_major, buffer, 0, lines.row_stride, matrix.batch_strides, matrix.dtype)


def realigned(matrix: Matrix, batch: Sequence[int], offset: int) -> tuple[Operand, int]:
    """The operand as the realign kernel copies it to the workspace, and the end of the copy there."""
    mn_major = runs_along_rows(matrix)
    length, lines = (matrix.rows, matrix.columns) if mn_major else (matrix.columns, matrix.rows)
    pitch = round_up(length, ALIGNMENT // matrix.dtype.itemsize if length < 4 * TILE_K else TILE_K)
    batch_strides, total = packed_batch_strides(matrix, batch, lines * pitch)
    end = round_up(offset + total * matrix.dtype.itemsize, WORKSPACE_ALIGNMENT)
    return Operand(matrix, mn_major, "workspace", offset, pitch, batch_strides, matrix.dtype), end


def runs_along_rows(matrix: Matrix) -> bool:
    """Neighbours in memory are of one column: lines of a copy should run along the rows' dimension."""
    return matrix.row_stride == 1 or (matrix.column_stride != 1 and 0 < matrix.row_stride < matrix.column_stride)


def packed_batch_strides(matrix: Matrix, batch: Sequence[int], elements: int) -> tuple[tuple[int, ...], int]:
    """The batch strides of a copy of all different matrices, `elements` each, and the elements of them all."""
    if not batch:
        return (), elements
    strides, step = [], elements
    for size, stride in zip(batch, matrix.batch_strides, strict=True):
        strides.append(step if stride else 0)
        step *= size if stride else 1
    return tuple(strides), step


def moving_batch(matrix: Matrix, batch: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and stride of each batch dimension along which matrices differ, and ones up to what a kernel walks."""
    if not batch:
        return _NO_BATCH
    moving = [(n, s) for n, s in zip(batch, matrix.batch_strides, strict=True) if s]
    missing = MAX_BATCH_DIMS - len(moving)
    return (*[n for n, _ in moving], *(1,) * missing), (*[s for _, s in moving], *(0,) * missing)


_NO_BATCH: Final = (1,) * MAX_BATCH_DIMS, (0,) * MAX_BATCH_DIMS


def different_matrices(batch_strides: Sequence[int], batch: Sequence[int]) -> int:
    """How many of a batch are not the same memory."""
    return math.prod([n for n, stride in zip(batch, batch_strides, strict=True) if stride]) if batch else 1


def walked_dims(batch: Sequence[int]) -> int:
    """The batch dimensions that a kernel walks: as many as there are, or two more, so that there are fewer kernels."""
    return len(batch) if len(batch) < 2 else MAX_BATCH_DIMS


def aligned_lines(lines: Matrix, access: int = ALIGNMENT) -> bool:
    """Every row is contiguous, and starts at a multiple of an access of so many bytes."""
    if lines.alignment < access or (lines.columns != 1 and lines.column_stride != 1):
        return False
    granule = access // lines.dtype.itemsize
    if lines.rows != 1 and lines.row_stride % granule:
        return False
    return not lines.batch_strides or not any(stride % granule for stride in lines.batch_strides)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
