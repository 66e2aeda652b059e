"""The launch that copies an operand into aligned lines along K, whatever its strides: turn.cu."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import (
    MAX_BATCH_DIMS,
    Address,
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
from tilesmith.core.problem import Matrix
from tilesmith.kernels.blank import blank
from tilesmith.kernels.operand import runs_along_rows

_THREADS: Final = 256
_LANES: Final = 32
_WORD: Final = 4  # bytes
_TYPES: Final = {4: "float", 1: "unsigned char"}  # by their bytes
_TILE_DEPTHS: Final = {4: 64, 1: 128}


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of turn.cu."""

    Element: str
    at_once: int  # neighbours across K that a lane reads
    tile_rows: int
    tile_depth: int


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of turn.cu."""

    source: Annotated[Pointer, to("const Element")]
    target: Annotated[Pointer, to("Element")]
    stride_m: Int64  # of the source
    stride_k: Int64
    batch_stride: Int64s
    pitch: Int64  # of the lines of the copy
    rows: Int32
    depth: Int32
    tiles_m: UInt32
    tiles_k: UInt32
    batch_size: UInt32s
    is_along_k: Int32  # neighbours in memory are


@dataclass(frozen=True, slots=True)
class Rates:
    """Table `turn` of a GPU's rates."""

    launch_clocks: float
    word_bytes_per_clock: float  # of the source, where its words are read
    byte_bytes_per_clock: float  # where its bytes are


def kernels(itemsize: int) -> Iterator[Kernel]:
    """Those that there are for elements of so many bytes."""
    return (_kernel(itemsize, at_once) for at_once in dict.fromkeys((1, _WORD // itemsize)))


@cache
def _kernel(itemsize: int, at_once: int) -> Kernel:
    dims = (0,) * MAX_BATCH_DIMS
    return Kernel.of(
        "turn",
        "kernels/turn.cu",
        Constants(
            Element=_TYPES[itemsize],
            at_once=at_once,
            tile_rows=_LANES * at_once,
            tile_depth=_TILE_DEPTHS[itemsize],
        ),
        blank(Parameters, batch_stride=dims, batch_size=dims),
        threads=_THREADS,
    )


def clocks(matrix: Matrix, copied_bytes: int, device: Device) -> float:
    """What the launch takes that copies so many bytes of such matrices, whose elements are bytes."""
    r = rates.section(device, "turn", Rates)
    rate = r.byte_bytes_per_clock if _at_once(matrix) == 1 else r.word_bytes_per_clock
    return r.launch_clocks + copied_bytes / rate


def _at_once(matrix: Matrix) -> int:
    """Elements that are read at once. The matrix's columns run along K."""
    in_word = _WORD // matrix.dtype.itemsize
    steps = (matrix.rows, matrix.column_stride, *matrix.batch_strides)
    are_whole = matrix.alignment % _WORD == 0 and not any(step % in_word for step in steps)
    return in_word if are_whole and matrix.row_stride == 1 else 1


def launch(
    matrix: Matrix,
    source: Address,
    target: Address,
    pitch: int,
    batch_size: tuple[int, ...],
    batch_stride: tuple[int, ...],
) -> KernelLaunch:
    """The launch that copies all different matrices of a batch, as `moving_batch` has it, to lines of `pitch` elements.
    The matrix's columns run along K."""
    kernel = _kernel(matrix.dtype.itemsize, _at_once(matrix))
    constants = kernel.constants
    assert isinstance(constants, Constants)
    tiles_m = math.ceil(matrix.rows / constants.tile_rows)
    tiles_k = math.ceil(matrix.columns / constants.tile_depth)
    parameters = Parameters(
        source=source,
        target=target,
        stride_m=matrix.row_stride,
        stride_k=matrix.column_stride,
        batch_stride=batch_stride,
        pitch=pitch,
        rows=matrix.rows,
        depth=matrix.columns,
        tiles_m=tiles_m,
        tiles_k=tiles_k,
        batch_size=batch_size,
        is_along_k=int(not runs_along_rows(matrix)),
    )
    grid = (tiles_m * tiles_k * math.prod(batch_size), 1, 1)
    return KernelLaunch(kernel, parameters, grid=grid, awaits_predecessor=True)
