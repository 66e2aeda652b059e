"""The launch that copies a float32 operand that lies across K into lines along K: turn.cu."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

from tilesmith.core.params import (
    MAX_BATCH_DIMS,
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
from tilesmith.kernels.realign import Copy

_THREADS: Final = 256
_TILE_ROWS: Final = 32
_TILE_DEPTH: Final = 64


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of turn.cu."""

    tile_rows: int = _TILE_ROWS
    tile_depth: int = _TILE_DEPTH


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of turn.cu."""

    source: Annotated[Pointer, to("const float")]
    target: Annotated[Pointer, to("float")]
    line_stride: Int64  # of the source
    batch_stride: Int64s
    pitch: Int64  # of the lines of the copy
    rows: Int32
    depth: Int32
    tiles_m: UInt32
    tiles_k: UInt32
    batch_size: UInt32s


def kernels() -> Iterator[Kernel]:
    """The one that there is."""
    yield _kernel()


@cache
def _kernel() -> Kernel:
    dims = (0,) * MAX_BATCH_DIMS
    parameters = blank(Parameters, batch_stride=dims, batch_size=dims)
    return Kernel.of("turn", "kernels/hopper/turn.cu", Constants(), parameters, threads=_THREADS)


def launch(copy: Copy, line_stride: int) -> KernelLaunch:
    """The launch that makes such a copy, which counts in 16-bit numbers, of lines across K with this stride."""
    rows, depth = copy.lines, copy.length // 2
    tiles_m, tiles_k = math.ceil(rows / _TILE_ROWS), math.ceil(depth / _TILE_DEPTH)
    parameters = Parameters(
        source=copy.source,
        target=copy.target,
        line_stride=line_stride,
        batch_stride=tuple(each // 2 for each in copy.batch_stride),
        pitch=copy.pitch // 2,
        rows=rows,
        depth=depth,
        tiles_m=tiles_m,
        tiles_k=tiles_k,
        batch_size=copy.batch_size,
    )
    grid = (tiles_m * tiles_k * math.prod(copy.batch_size), 1, 1)
    return KernelLaunch(_kernel(), parameters, grid=grid, awaits_predecessor=True)
