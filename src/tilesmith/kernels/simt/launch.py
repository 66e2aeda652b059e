"""What simt.cu is compiled and launched with."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final

from tilesmith.core.params import Address, Buffer, Int32, Int64, KernelConstants, ParameterBlock, Pointer, to
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.blank import blank
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters

LANES: Final = (4, 8)  # of a warp, along M and along N
RASTER_GROUP: Final = 8  # tile rows that are done together
MAX_BATCH_DIMS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of simt.cu."""

    Element: str
    WideOutput: str  # what the output may be besides
    Accumulator: str
    Index: str
    tile_m: int
    tile_n: int
    tile_k: int
    unrolled_k: int  # of its steps; where that is not all of them, there is less to compile
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
    raster_group: int = RASTER_GROUP
    unrolls_stores: bool  # of all rows, in the widest vectors
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
    out: Annotated[Pointer, to("void")]
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
    adds: Int32  # to what the output has, if the constants allow it
    out_is_wide: Int32
    out_vector: Int32  # that the output can be stored in
    batch_dims: Int32
    batch: tuple[BatchDim, ...]  # the last one fastest
    epilogue: EpilogueParameters

    @classmethod
    def for_each_launch(
        cls, problem: Problem, tile: tuple[int, int], order: tuple[Buffer, Buffer], out_vector: int
    ) -> "Iterator[Parameters]":
        """The parameters of a product. `order`: the buffers that have A and B. A launch walks MAX_BATCH_DIMS; of more
        than that, which nobody has, the others have a launch for each of their matrices."""
        outer = len(problem.batch) - MAX_BATCH_DIMS
        if outer <= 0:
            yield cls._of(problem, order, tile, out_vector)
            return
        for index in itertools.product(*map(range, problem.batch[:outer])):
            yield cls._of(problem, order, tile, out_vector, index)

    @classmethod
    def _of(
        cls,
        problem: Problem,
        order: tuple[Buffer, Buffer],
        tile: tuple[int, int],
        out_vector: int,
        outer: tuple[int, ...] = (),
    ) -> "Parameters":
        """The parameters of the matrices that have these first indices in the batch."""

        def address(buffer: Buffer, matrix: Matrix) -> Address:
            elements = sum(i * stride for i, stride in zip(outer, matrix.batch_strides, strict=False))
            return Address(buffer, elements * matrix.dtype.itemsize)

        walked = slice(len(outer), None)
        p, a, b, out = problem, problem.a, problem.b, problem.out
        batch = list(zip(p.batch, a.batch_strides, b.batch_strides, out.batch_strides, strict=True))[walked]
        dims = [BatchDim(size=n, a_stride=x, b_stride=y, out_stride=z) for n, x, y, z in batch]
        spec = p.epilogue
        residual = None if spec is None else spec.residual
        if outer and spec is not None and residual is not None:
            spec = spec._replace(residual=residual._replace(batch_strides=residual.batch_strides[walked]))
        epilogue = EpilogueParameters.of(spec, MAX_BATCH_DIMS)
        if residual is not None:
            epilogue = replace(epilogue, residual=address("residual", residual))
        return cls(
            a=address(order[0], a),
            b=address(order[1], b),
            out=address("out", out),
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
            batches=math.prod(p.batch[walked]),
            adds=0,
            out_is_wide=int(out.dtype != a.dtype),
            out_vector=out_vector,
            batch_dims=len(dims),
            batch=(*dims, *(_NO_DIM,) * (MAX_BATCH_DIMS - len(dims))),
            epilogue=epilogue,
        )


_NO_DIM: Final = blank(BatchDim)
BLANK_PARAMETERS: Final = blank(
    Parameters, batch=(_NO_DIM,) * MAX_BATCH_DIMS, epilogue=EpilogueParameters.of(None, MAX_BATCH_DIMS)
)
