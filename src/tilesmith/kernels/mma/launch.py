"""The kernels of mma.cu and mma_large.cu, and their launches."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

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
from tilesmith.core.problem import ALIGNMENT, Problem
from tilesmith.kernels import output
from tilesmith.kernels.blank import blank
from tilesmith.kernels.element import CUDA_TYPES, PAIR_TYPES
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters, epilogues_with_reads, kind_of_reads
from tilesmith.kernels.mma.operands import Lines, Pair, fastest_first
from tilesmith.kernels.mma.tiles import MMA, TURING_MMA_K, Cut, Tile
from tilesmith.kernels.operand import aligned_lines

_STEP_PRODUCTS: Final = ("kernels/mma/step_products.cuh", "kernels/mma/parts/held_step_products.cuh")


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of mma.cu and mma_large.cu."""

    Element: str  # of the operands
    Sum: str  # double, int, or float: then operands of float32 are multiplied as TF32
    Partial: str  # of a part of K
    Output: str
    mma_m: int = MMA[0]
    mma_n: int = MMA[1]
    mma_k: int = MMA[2]
    product_k: int  # of an instruction for float16: mma_k takes one or two
    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    warps_k: int
    blocks_per_sm: int
    stages: int
    holds_copies: bool  # in registers, on their way to the ring
    by_matrices: bool
    raster_rows: int
    a_along_k: bool
    a_copy_bytes: int
    b_along_k: bool
    b_copy_bytes: int
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of mma.cu and mma_large.cu."""

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
    stores_vectors: Int32  # of columns
    out_is_partial: Int32
    out_part_stride: Int64
    epilogue: EpilogueParameters


@dataclass(frozen=True, kw_only=True)
class LargeParameters(Parameters):
    """The parameters of mma_large.cu."""

    copies_are_whole: Int32  # also those at the ends of lines along M or N


class Arithmetic(NamedTuple):
    """What is multiplied, and what it is summed in."""

    dtype: torch.dtype  # of the operands
    sums: torch.dtype
    output: torch.dtype

    @property
    def partials(self) -> torch.dtype:
        """Sums of parts of K."""
        return torch.float64 if self.dtype == torch.float32 else self.sums

    @property
    def element(self) -> str:
        """What a kernel reads at a time."""
        return PAIR_TYPES.get(self.dtype) or CUDA_TYPES[self.dtype]

    @property
    def element_bytes(self) -> int:
        return self.dtype.itemsize * (2 if self.dtype in PAIR_TYPES else 1)


def kernels(arithmetic: Arithmetic, tiles: tuple[Tile, ...]) -> Iterator[Kernel]:
    """All that products with these tiles may take. Pairs lie along K, and their products have no epilogue."""
    are_pairs = arithmetic.dtype in PAIR_TYPES
    ways = (True,) if are_pairs else (True, False)
    for tile, a_along_k, b_along_k in itertools.product(tiles, ways, ways):
        for a_bytes, b_bytes in tile.copy_widths(arithmetic.element_bytes):
            a, b = Lines(a_along_k, a_bytes), Lines(b_along_k, b_bytes)
            for has_epilogue in (False,) if are_pairs else epilogues_with_reads(a.is_aligned and b.is_aligned):
                yield _kernel(arithmetic, tile, a, b, has_epilogue)


@cache
def _kernel(arithmetic: Arithmetic, tile: Tile, a: Lines, b: Lines, has_epilogue: bool) -> Kernel:
    constants = Constants(
        Output=CUDA_TYPES[arithmetic.output],
        **constants_of(arithmetic.element, arithmetic.sums, arithmetic.partials, tile, a, b, has_epilogue),
    )
    name, parameters = ("mma_large", LargeParameters) if tile.by_matrices else ("mma", Parameters)
    return Kernel.of(
        name,
        f"kernels/mma/{name}.cu",
        constants,
        blank(parameters, **blank_arrays()),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(arithmetic.element_bytes),
        parts=(_STEP_PRODUCTS[tile.on_turing],) if tile.by_matrices else (),
    )


def constants_of(
    element: str, sums: torch.dtype, partials: torch.dtype, tile: Tile, a: Lines, b: Lines, has_epilogue: bool
) -> dict[str, Any]:
    """The constants that all these kernels have, but for the type of the output."""
    return {
        "Element": element,
        "Sum": CUDA_TYPES[sums],
        "Partial": CUDA_TYPES[partials],
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "warps_m": tile.warps_m,
        "warps_n": tile.warps_n,
        "warps_k": tile.warps_k,
        "blocks_per_sm": tile.blocks_per_sm,
        "stages": tile.stages,
        "product_k": TURING_MMA_K if tile.on_turing else MMA[2],
        "holds_copies": tile.on_turing,
        "by_matrices": tile.by_matrices,
        "raster_rows": tile.raster_rows,
        "a_along_k": a.along_k,
        "a_copy_bytes": a.copy_bytes,
        "b_along_k": b.along_k,
        "b_copy_bytes": b.copy_bytes,
        "epilogue": EpilogueConstants(any=has_epilogue),
    }


def blank_arrays() -> dict[str, Any]:
    """The arrays and blocks of parameters of nothing yet."""
    dims = (0,) * MAX_BATCH_DIMS
    return {
        "a_batch_strides": dims,
        "b_batch_strides": dims,
        "out_batch_strides": dims,
        "batch": dims,
        "epilogue": EpilogueParameters.of(None, MAX_BATCH_DIMS),
    }


def launch(
    problem: Problem, arithmetic: Arithmetic, cut: Cut, operands: Pair, partials: output.Output | None
) -> KernelLaunch:
    """The launch that multiplies, into the output or partial products of it. `problem`: stored by rows, and its K
    counts what a kernel reads at a time."""
    a, b = (each.lines for each in operands)
    spec = problem.epilogue if partials is None else None  # or else that of the launch that adds the parts
    _, _, has_epilogue = kind_of_reads(a.is_aligned, b.is_aligned, spec)
    kernel = _kernel(arithmetic, cut.tile, a, b, has_epilogue)
    known = parameters_of(problem, cut, operands, problem.k, partials)
    if not cut.tile.by_matrices:
        return launch_of(kernel, Parameters(**known), problem, cut)
    granule = ALIGNMENT // arithmetic.element_bytes
    are_whole = all(
        each.lines.along_k or each.address.buffer == "workspace" or rows % granule == 0
        for each, rows in zip(operands, (problem.m, problem.n), strict=True)
    )
    return launch_of(kernel, LargeParameters(**known, copies_are_whole=int(are_whole)), problem, cut)


def launch_of(kernel: Kernel, parameters: ParameterBlock, p: Problem, cut: Cut) -> KernelLaunch:
    tile, split_k = cut
    return KernelLaunch(
        kernel,
        parameters,
        grid=(-(-p.n // tile.n) * p.batches, -(-p.m // tile.m), split_k),
        awaits_predecessor=True,
        multiplies=True,
    )


def parameters_of(p: Problem, cut: Cut, operands: Pair, depth: int, partials: output.Output | None) -> dict[str, Any]:
    """The parameters that all these kernels have. `depth`: K of the operands as they are read."""
    (a, b), missing_dims = operands, MAX_BATCH_DIMS - len(p.batch)
    if partials is None:
        out, out_strides = Address("out"), (p.out.row_stride, p.out.column_stride)
        out_batch_strides, part_stride = fastest_first(p.out.batch_strides), 0
    else:
        out, line, (matrix,) = Address("workspace"), partials.line_stride, partials.batch_strides
        out_strides = (1, line) if partials.along_m else (line, 1)
        # That launch counts the first dimension of a batch fastest.
        out_batch_strides = fastest_first([matrix * math.prod(p.batch[:i]) for i in range(len(p.batch))])
        part_stride = matrix * p.batches
    vector = cut.tile.vector(p.out.dtype.itemsize)
    return {
        "a": a.address,
        "b": b.address,
        "out": out,
        "a_stride_m": a.stride_mn,
        "a_stride_k": a.stride_k,
        "b_stride_k": b.stride_k,
        "b_stride_n": b.stride_mn,
        "out_stride_m": out_strides[0],
        "out_stride_n": out_strides[1],
        "a_batch_strides": a.batch_strides,
        "b_batch_strides": b.batch_strides,
        "out_batch_strides": out_batch_strides,
        "batch": (*reversed(p.batch), *(1,) * missing_dims),
        "m": p.m,
        "n": p.n,
        "k": depth,
        "part_k": depth if partials is None else cut.part_k(depth),
        "tiles_n": -(-p.n // cut.tile.n),
        "stores_vectors": int(
            partials is None and aligned_lines(p.out) and p.out.column_stride == 1 and p.n % vector == 0
        ),
        "out_is_partial": int(partials is not None),
        "out_part_stride": part_stride,
        "epilogue": EpilogueParameters.of(p.epilogue if partials is None else None, MAX_BATCH_DIMS, fastest_first=True),
    }
