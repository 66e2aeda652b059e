"""The output of the tensor-core kernels: how it is stored, and the reduction of partial products."""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import torch

from tilesmith.kernels import finish
from tilesmith.kernels.operand import CUDA_TYPES, MOST_BATCH_DIMENSIONS, round_up
from tilesmith.plan import Address, Buffer, Constant, Kernel, Stage, TensorMap
from tilesmith.problem import ALIGNMENT, Matrix, Problem

_LINE_BYTES: Final = 128  # of a box, at most
_WARP_ROWS: Final = 16
_WARPGROUP_ROWS: Final = 64


class Store(IntEnum):
    """enum Store of epilogue.cuh."""

    BOXES = 0
    VECTORS = 1
    LINES = 2
    DIRECT = 3


@dataclass(frozen=True, slots=True)
class Staging:
    """StagedChunk and Storer of epilogue.cuh."""

    store: Store
    chunk: int  # columns that are staged at once
    by_warp: bool  # each warp stages its own rows; or else the warpgroup together
    buffers: int
    line: int  # elements of a line of a box
    lines: int  # of a box
    padding: int = 0  # bytes after a row of a chunk


@dataclass(frozen=True, slots=True)
class Result:
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

    def staging(self, tile_n: int, *, by_rows: bool, overlapped: bool, lean: bool) -> Staging:
        """How tiles of this width pass through shared memory. `by_rows`: whole rows of a tile leave together, which
        memory prefers, but they take more space. `overlapped`: long products run at the same time, which need shared
        memory as well. `lean`: in as little space as possible."""
        widest = _LINE_BYTES // self.dtype.itemsize
        if by_rows and self.aligned and not self.along_m and tile_n % widest == 0:
            if overlapped and self.dtype == torch.float32:
                return Staging(Store.DIRECT, widest, True, 0, widest, _WARP_ROWS)
            pieces = range(1, tile_n // widest + 1)
            chunk = next(tile_n // i for i in pieces if tile_n % (i * widest) == 0 and tile_n // i <= 4 * widest)
            padding = 32 if self.dtype.itemsize == 4 else 16
            return Staging(Store.VECTORS, chunk, True, 1, widest, _WARP_ROWS, padding)
        chunk = next(width for width in (64, 32, 16, 8) if width <= widest and tile_n % width == 0)
        store = Store.BOXES if self.aligned else Store.LINES
        buffers = max(32 // chunk, 1) if lean else 2
        if self.along_m:
            return Staging(store, chunk, by_warp=False, buffers=buffers, line=min(_WARPGROUP_ROWS, widest), lines=chunk)
        if self.aligned:
            return Staging(store, chunk, by_warp=False, buffers=buffers, line=chunk, lines=_WARPGROUP_ROWS)
        return Staging(store, chunk, by_warp=True, buffers=buffers, line=chunk, lines=_WARP_ROWS)

    def tensor_map(self, position: int, staging: Staging) -> TensorMap:
        size = self.dtype.itemsize
        strides = (self.line_stride or round_up(self.length, ALIGNMENT // size), *self.batch_strides)
        return TensorMap(
            position=position,
            buffer=self.buffer,
            offset=self.offset,
            dtype=self.dtype,
            sizes=(self.length, self.lines, *self.batch),
            strides=tuple(stride * size for stride in strides),
            box=(staging.line, staging.lines, *(1 for _ in self.batch)),
            line_bytes=staging.line * size,
        )


def direct(out: Matrix, batch: tuple[int, ...]) -> Result | None:
    """The output as it lies, if its rows or its columns are contiguous."""
    along_m = _runs_along_m(out)
    lines = out.transposed if along_m else out
    if lines.columns > 1 and lines.column_stride != 1:
        return None
    # The copy engine writes the last 16 bytes of a line whole, even where the tensor map ends within them.
    granule = ALIGNMENT // out.dtype.itemsize
    steps = (lines.columns, *(() if lines.rows == 1 else (lines.row_stride,)), *out.batch_strides)
    return Result(
        dtype=out.dtype,
        along_m=along_m,
        aligned=out.alignment >= ALIGNMENT and not any(step % granule for step in steps),
        buffer="out",
        offset=0,
        length=lines.columns,
        lines=lines.rows,
        line_stride=lines.row_stride,
        batch=batch,
        batch_strides=out.batch_strides,
    )


def partial(out: Matrix, matrices: int, offset: int) -> Result:
    """Dense float32 matrices in the workspace, their lines along those of the output."""
    along_m = _runs_along_m(out)
    lines = out.transposed if along_m else out
    pitch = round_up(lines.columns, ALIGNMENT // torch.float32.itemsize)
    return Result(
        dtype=torch.float32,
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


_WARP: Final = 32
_REDUCE_WARPS: Final = 8
_REDUCE_THREADS: Final = _REDUCE_WARPS * _WARP
_VECTOR: Final = 4  # of kernels/reduce.cu


def reduce_stage(problem: Problem, partials: Result, splits: int) -> Stage:
    """The launch that adds the partial products into the output."""
    by_lines = problem.transposed if partials.along_m else problem
    out, batch, lines = problem.out, problem.batch, by_lines.out
    strides = [*out.batch_strides, *(0 for _ in range(MOST_BATCH_DIMENSIONS - len(batch)))]
    vectors = partials.batch[0] // splits * partials.lines * partials.line_stride // _VECTOR
    turns = next(warps for warps in (1, 2, 4, _REDUCE_WARPS) if 2 * warps >= splits or warps == _REDUCE_WARPS)
    arguments = struct.pack(
        "<10q5i4x",
        *(0, 0),  # addresses
        *(lines.row_stride, lines.column_stride),
        *strides,
        *(partials.line_stride, vectors, partials.lines),
        *(partials.length, splits),
        *batch,
        *(1 for _ in range(MOST_BATCH_DIMENSIONS - len(batch))),
    )
    finish_at = len(arguments)
    arguments += finish.arguments(by_lines.finish, MOST_BATCH_DIMENSIONS)
    vector_strides = (lines.row_stride, *out.batch_strides, lines.columns)
    aligned = out.alignment >= _VECTOR * out.dtype.itemsize and not any(s % _VECTOR for s in vector_strides)
    constants: dict[str, Constant] = {
        "Output": CUDA_TYPES[out.dtype],
        "out_vector": _VECTOR if lines.column_stride == 1 and aligned else 1,
        "threads": _REDUCE_THREADS,
        "turns": turns,
        **finish.constants(by_lines.finish),
        "parameter_bytes": len(arguments),
    }
    return Stage(
        kernel=Kernel("reduce", "kernels/reduce.cu", tuple(constants.items()), 0),
        grid=(math.ceil(vectors / (_WARP * _REDUCE_WARPS // turns)), 1, 1),
        threads=_REDUCE_THREADS,
        arguments=arguments,
        addresses=(
            Address(0, "workspace", partials.offset),
            Address(8, "out"),
            *finish.addresses(by_lines.finish, finish_at),
        ),
        awaits_predecessor=True,
    )
