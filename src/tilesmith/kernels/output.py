"""The output of the tensor-core kernels: the caller's own or partial products, and how it is stored."""

from functools import cache
from typing import Final, NamedTuple

import torch

from tilesmith.core.params import Buffer, KernelEnum, TensorMap
from tilesmith.core.problem import ALIGNMENT, Matrix
from tilesmith.kernels.operand import round_up

_LINE_BYTES: Final = 128  # of a box, at most
_WARP_ROWS: Final = 16
_WARPGROUP_ROWS: Final = 64


class Store(KernelEnum):
    """How results leave shared memory: hopper/parts/store_boxes.cuh and its like."""

    BOXES = 0  # by TMA
    VECTORS = 1  # by the threads, 16 bytes each
    LINES = 2  # by the threads, from and to any element
    DIRECT = 3  # they are never in it: by the threads from their registers, 16 bytes each


class Staging(NamedTuple):
    """How tiles pass through shared memory: StagedChunk of staged_chunk.cuh, Staging of hopper/staging.cuh."""

    store: Store
    chunk: int  # columns that are staged at once
    by_warp: bool  # each warp stages its own rows; or else the warpgroup together
    buffers: int
    line: int  # elements of a line of a box
    lines: int  # of a box
    line_gap: int = 0  # bytes after a line of a chunk, that keep lines in different banks
    front: int = 0  # bytes before the first chunk of a warpgroup

    def bytes(self, dtype: torch.dtype, along_m: bool) -> int:
        """Of a warpgroup."""
        rows, columns = (self.chunk, _WARPGROUP_ROWS) if along_m else (_WARPGROUP_ROWS, self.chunk)
        return self.front + self.buffers * rows * (columns * dtype.itemsize + self.line_gap)


class Output(NamedTuple):
    """What a kernel writes: the output itself, or float32 partial products in the workspace."""

    dtype: torch.dtype
    along_m: bool  # lines run along M
    aligned: bool  # all lines start and end at multiples of 16 bytes, or what follows them is ours
    buffer: Buffer
    offset: int  # bytes into the buffer
    length: int  # of a line
    lines: int
    line_stride: int  # elements
    batch: tuple[int, ...]
    batch_strides: tuple[int, ...]

    @property
    def is_partial(self) -> bool:
        return self.buffer == "workspace"

    @property
    def bytes(self) -> int:
        return self.batch[0] * self.batch_strides[0] * self.dtype.itemsize

    def tensor_map(self, staging: Staging, dims: int) -> TensorMap:
        """For a kernel that walks `dims` dimensions of a batch."""
        size = self.dtype.itemsize
        line_stride = self.line_stride or round_up(self.length, ALIGNMENT // size)
        sizes: tuple[int, ...] = self.length, self.lines
        strides: tuple[int, ...] = (line_stride * size,)
        box: tuple[int, ...] = staging.line, staging.lines
        if dims:
            missing = dims - len(self.batch)
            sizes += (*self.batch, *(1,) * missing)
            strides += tuple([stride * size for stride in (*self.batch_strides, *(ALIGNMENT,) * missing)])
            box += (1,) * dims
        return TensorMap(self.buffer, self.offset, self.dtype, sizes, strides, box, staging.line * size)


@cache
def staging(
    dtype: torch.dtype, *, along_m: bool, aligned: bool, tile_n: int, by_rows: bool, overlapped: bool, lean: bool
) -> Staging:
    """How tiles of this width pass through shared memory on their way to an output. `by_rows`: whole rows of a tile
    leave together, which memory prefers, but they take more space. `overlapped`: long products run at the same time,
    which need shared memory as well. `lean`: in as little space as possible."""
    max_line, gap = _LINE_BYTES // dtype.itemsize, 32 if dtype.itemsize == 4 else 16
    if by_rows and aligned and not along_m and tile_n % max_line == 0:
        if overlapped and dtype == torch.float32:
            return Staging(Store.DIRECT, max_line, True, 0, max_line, _WARP_ROWS)
        pieces = range(1, tile_n // max_line + 1)
        chunk = next(tile_n // i for i in pieces if tile_n % (i * max_line) == 0 and tile_n // i <= 4 * max_line)
        return Staging(Store.VECTORS, chunk, True, 1, max_line, _WARP_ROWS, line_gap=gap)
    chunk = next(width for width in (64, 32, 16, 8) if width <= max_line and tile_n % width == 0)
    line, lines = (min(_WARPGROUP_ROWS, max_line), chunk) if along_m else (chunk, _WARPGROUP_ROWS)
    if not aligned:  # threads have read a chunk when they have sent it
        return Staging(Store.LINES, chunk, not along_m, 1, line, lines, line_gap=gap, front=ALIGNMENT)
    return Staging(Store.BOXES, chunk, False, max(32 // chunk, 1) if lean else 2, line, lines)


def direct(out: Matrix, batch: tuple[int, ...]) -> Output | None:
    """The output as it lies, if its rows or its columns are contiguous."""
    along_m = _runs_along_m(out)
    lines = out.transposed if along_m else out
    if lines.columns > 1 and lines.column_stride != 1:
        return None
    # TMA writes the last 16 bytes of a line whole, even where the tensor map ends within them.
    granule = ALIGNMENT // out.dtype.itemsize
    steps = lines.columns | (0 if lines.rows == 1 else lines.row_stride)  # a multiple of a power of two, if both are
    for stride in out.batch_strides:
        steps |= stride
    aligned = out.alignment >= ALIGNMENT and steps % granule == 0
    return Output(
        *(out.dtype, along_m, aligned, "out", 0, lines.columns, lines.rows, lines.row_stride),
        *(batch, out.batch_strides),
    )


def partial(out: Matrix, matrices: int, offset: int, dtype: torch.dtype = torch.float32) -> Output:
    """Dense matrices of sums in the workspace, their lines along those of the output."""
    along_m = _runs_along_m(out)
    lines = out.transposed if along_m else out
    pitch = round_up(lines.columns, ALIGNMENT // torch.float32.itemsize)
    return Output(
        dtype=dtype,
        along_m=along_m,
        aligned=True,
        buffer="workspace",
        offset=offset,
        length=lines.columns,
        lines=lines.rows,
        line_stride=pitch,
        batch=(matrices,),
        batch_strides=(lines.rows * pitch,),
    )


def _runs_along_m(out: Matrix) -> bool:
    return out.column_stride != 1 and out.row_stride == 1
