"""The kernels of mma.cu, and their launches."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, NamedTuple

import torch

from tilesmith.core.params import (
    MAX_BATCH_DIMS,
    Address,
    Int32,
    Int32s,
    Int64,
    Int64s,
    KernelConstants,
    ParameterBlock,
    Pointer,
    to,
)
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.core.problem import Problem
from tilesmith.kernels import output
from tilesmith.kernels.blank import blank
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters, epilogues_with_reads, kind_of_reads
from tilesmith.kernels.mma.tiles import MAX_GROUP, MMA, Cut, Lines, Tile, copy_widths, lines_of
from tilesmith.kernels.operand import aligned_lines


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of mma.cu."""

    Element: str  # of the operands
    Sum: str  # double, or float: then operands of float32 are multiplied as TF32
    Partial: str  # of a part of K
    Output: str
    mma_m: int = MMA[0]
    mma_n: int = MMA[1]
    mma_k: int = MMA[2]
    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    warps_k: int
    blocks_per_sm: int
    stages: int
    a_along_k: bool
    a_copy_bytes: int
    b_along_k: bool
    b_copy_bytes: int
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of mma.cu."""

    a: Annotated[Pointer, to("const Element")]
    b: Annotated[Pointer, to("const Element")]
    out: Annotated[Pointer, to("void")]  # Output; Partial if they are parts of sums
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_k: Int64
    b_stride_n: Int64
    out_stride_m: Int64
    out_stride_n: Int64
    a_batch_strides: Int64s  # the fastest dimension first
    b_batch_strides: Int64s
    out_batch_strides: Int64s
    batch: Int32s
    m: Int32
    n: Int32
    k: Int32
    part_k: Int32  # of a block, if K is cut into parts; or else K
    tiles_n: Int32
    stores_groups: Int32  # of columns
    out_is_partial: Int32
    out_part_stride: Int64
    epilogue: EpilogueParameters


class Arithmetic(NamedTuple):
    """What is multiplied, and what it is summed in."""

    dtype: torch.dtype  # of the operands and the output
    sums: torch.dtype

    @property
    def partials(self) -> torch.dtype:
        """Sums of parts of K."""
        return torch.float64 if self.dtype == torch.float32 else self.sums


def kernels(arithmetic: Arithmetic, tiles: tuple[Tile, ...]) -> Iterator[Kernel]:
    """All that products with these tiles may take."""
    for tile, a_along_k, b_along_k in itertools.product(tiles, (True, False), (True, False)):
        for a_bytes, b_bytes in copy_widths(arithmetic.dtype.itemsize):
            a, b = Lines(a_along_k, a_bytes), Lines(b_along_k, b_bytes)
            for has_epilogue in epilogues_with_reads(a.is_aligned and b.is_aligned):
                yield _kernel(arithmetic, tile, a, b, has_epilogue)


@cache
def _kernel(arithmetic: Arithmetic, tile: Tile, a: Lines, b: Lines, has_epilogue: bool) -> Kernel:
    constants = Constants(
        Element=CUDA_TYPES[arithmetic.dtype],
        Sum=CUDA_TYPES[arithmetic.sums],
        Partial=CUDA_TYPES[arithmetic.partials],
        Output=CUDA_TYPES[arithmetic.dtype],
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        warps_m=tile.warps_m,
        warps_n=tile.warps_n,
        warps_k=tile.warps_k,
        blocks_per_sm=tile.blocks_per_sm,
        stages=tile.stages,
        a_along_k=a.along_k,
        a_copy_bytes=a.copy_bytes,
        b_along_k=b.along_k,
        b_copy_bytes=b.copy_bytes,
        epilogue=EpilogueConstants(any=has_epilogue),
    )
    dims = (0,) * MAX_BATCH_DIMS
    parameters = blank(
        Parameters,
        a_batch_strides=dims,
        b_batch_strides=dims,
        out_batch_strides=dims,
        batch=dims,
        epilogue=EpilogueParameters.of(None, MAX_BATCH_DIMS),
    )
    return Kernel.of(
        "mma",
        "kernels/mma/mma.cu",
        constants,
        parameters,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(arithmetic.dtype.itemsize),
    )


def launch(problem: Problem, arithmetic: Arithmetic, cut: Cut, partials: output.Output | None) -> KernelLaunch:
    """The launch that multiplies, into the output or partial products of it."""
    p, (tile, split_k) = problem.stored_by_rows, cut
    tiles_m, tiles_n = math.ceil(p.m / tile.m), math.ceil(p.n / tile.n)
    a, b = lines_of(p)
    spec = p.epilogue if partials is None else None  # or else that of the launch that adds the parts
    _, _, has_epilogue = kind_of_reads(a.is_aligned, b.is_aligned, spec)
    return KernelLaunch(
        _kernel(arithmetic, tile, a, b, has_epilogue),
        _parameters(problem, cut, partials),
        grid=(tiles_n * p.batches, tiles_m, split_k),
        awaits_predecessor=True,
        multiplies=True,
    )


def _parameters(problem: Problem, cut: Cut, partials: output.Output | None) -> Parameters:
    p, missing_dims = problem.stored_by_rows, MAX_BATCH_DIMS - len(problem.batch)

    def fastest_first(strides: tuple[int, ...]) -> tuple[int, ...]:
        return *reversed(strides), *(0,) * missing_dims

    if partials is None:
        out, out_strides = Address("out"), (p.out.row_stride, p.out.column_stride)
        out_batch_strides, part_stride = p.out.batch_strides, 0
    else:
        out, line, (matrix,) = Address("workspace"), partials.line_stride, partials.batch_strides
        out_strides = (1, line) if partials.along_m else (line, 1)
        # That launch counts the first dimension of a batch fastest.
        out_batch_strides = tuple(matrix * math.prod(p.batch[:i]) for i in range(len(p.batch)))
        part_stride = matrix * p.batches
    return Parameters(
        a=Address("a" if p is problem else "b"),
        b=Address("b" if p is problem else "a"),
        out=out,
        a_stride_m=p.a.row_stride,
        a_stride_k=p.a.column_stride,
        b_stride_k=p.b.row_stride,
        b_stride_n=p.b.column_stride,
        out_stride_m=out_strides[0],
        out_stride_n=out_strides[1],
        a_batch_strides=fastest_first(p.a.batch_strides),
        b_batch_strides=fastest_first(p.b.batch_strides),
        out_batch_strides=fastest_first(out_batch_strides),
        batch=(*reversed(p.batch), *(1,) * missing_dims),
        m=p.m,
        n=p.n,
        k=p.k,
        part_k=p.k if partials is None else cut.part_k(p.k),
        tiles_n=math.ceil(p.n / cut.tile.n),
        stores_groups=int(
            partials is None and aligned_lines(p.out) and p.out.column_stride == 1 and p.n % MAX_GROUP == 0
        ),
        out_is_partial=int(partials is not None),
        out_part_stride=part_stride,
        epilogue=EpilogueParameters.of(p.epilogue if partials is None else None, MAX_BATCH_DIMS, fastest_first=True),
    )
