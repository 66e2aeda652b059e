"""What simt.cu is compiled and launched with."""

import math
from dataclasses import dataclass
from typing import Annotated, Final

from tilesmith.core.params import Address, Buffer, Int64, KernelConstants, ParameterBlock, Pointer, to
from tilesmith.core.problem import Problem
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters

LANES: Final = (4, 8)  # of a warp, along M and along N
RASTER_GROUP: Final = 8  # tile rows that are done together


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of simt.cu."""

    Element: str
    Output: str
    Accumulator: str
    Index: str
    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    lanes_m: int = LANES[0]
    lanes_n: int = LANES[1]
    blocks_per_sm: int
    a_along_k: bool
    a_vector: int
    a_pitch: int
    b_along_k: bool
    b_vector: int
    b_pitch: int
    out_vector: int
    batch_dims: int
    raster_group: int = RASTER_GROUP
    may_add: bool
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class BatchDim(ParameterBlock):
    """A dimension of the batch."""

    size: Int64
    a_stride: Int64
    b_stride: Int64
    out_stride: Int64


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of simt.cu."""

    a: Annotated[Pointer, to("const Element")]
    b: Annotated[Pointer, to("const Element")]
    out: Annotated[Pointer, to("Output")]
    m: Int64
    n: Int64
    k: Int64
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_k: Int64
    b_stride_n: Int64
    out_stride_m: Int64
    out_stride_n: Int64
    tiles_m: Int64
    tiles_n: Int64
    batches: Int64
    adds: Int64 = 0  # to what the output has, if the constants allow it
    batch: tuple[BatchDim, ...]  # the last one fastest
    epilogue: EpilogueParameters

    @classmethod
    def of(cls, problem: Problem, tile: tuple[int, int], order: tuple[Buffer, Buffer]) -> "Parameters":
        """The parameters of a product. `order`: the buffers that have A and B."""
        p, a, b, out = problem, problem.a, problem.b, problem.out
        batch = zip(p.batch, a.batch_strides, b.batch_strides, out.batch_strides, strict=True)
        dims = [BatchDim(size=n, a_stride=x, b_stride=y, out_stride=z) for n, x, y, z in batch]
        return cls(
            a=Address(order[0]),
            b=Address(order[1]),
            out=Address("out"),
            m=p.m,
            n=p.n,
            k=p.k,
            a_stride_m=a.row_stride,
            a_stride_k=a.column_stride,
            b_stride_k=b.row_stride,
            b_stride_n=b.column_stride,
            out_stride_m=out.row_stride,
            out_stride_n=out.column_stride,
            tiles_m=math.ceil(p.m / tile[0]),
            tiles_n=math.ceil(p.n / tile[1]),
            batches=p.batches,
            batch=tuple(dims) or (BatchDim(size=1, a_stride=0, b_stride=0, out_stride=0),),
            epilogue=EpilogueParameters.of(p.epilogue, len(p.batch)),
        )
