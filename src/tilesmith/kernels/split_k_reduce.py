"""The launch that adds the partial products of a split K: split_k_reduce.cu."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

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
from tilesmith.kernels.blank import blank
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.epilogue import EpilogueConstants, EpilogueParameters
from tilesmith.kernels.output import Output

_WARPS: Final = 8
_VECTOR: Final = 4  # elements
_TURNS: Final = (1, 2, 4, _WARPS)
# Of partial sums, and of the outputs that they are added into. Integers have no epilogue.
_TYPES: Final = {
    torch.float32: (torch.float32, torch.float16, torch.bfloat16),
    torch.float64: (torch.float32, torch.float64),
    torch.int32: (torch.int32, torch.int8, torch.uint8),
}


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    """The constants of split_k_reduce.cu."""

    Partial: str
    Output: str
    vector: int = _VECTOR
    turns: int  # warps that share vectors
    epilogue: EpilogueConstants


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    """The parameters of split_k_reduce.cu."""

    partial: Annotated[Pointer, to("const void")]  # [split][batch][line][pitch]
    out: Annotated[Pointer, to("Output")]
    line_stride: Int64  # of the output
    element_stride: Int64
    batch_stride: Int64s
    pitch: Int64
    vectors: Int64  # of one split
    lines: Int64  # of one matrix
    length: Int32
    split_k: Int32
    out_is_aligned: Int32  # all vectors of its lines are
    batch_size: Int32s
    epilogue: EpilogueParameters  # of lines and their elements


def kernels() -> Iterator[Kernel]:
    """All that a launch may take."""
    for partial, outputs in _TYPES.items():
        may_have_epilogue = (False, True) if partial.is_floating_point else (False,)
        for how in itertools.product(outputs, _TURNS, may_have_epilogue):
            yield _kernel(partial, *how)


@cache
def _kernel(partial: torch.dtype, output: torch.dtype, turns: int, has_epilogue: bool) -> Kernel:
    constants = Constants(
        Partial=CUDA_TYPES[partial],
        Output=CUDA_TYPES[output],
        turns=turns,
        epilogue=EpilogueConstants(any=has_epilogue),
    )
    dims = (0,) * MAX_BATCH_DIMS
    none = EpilogueParameters.of(None, MAX_BATCH_DIMS)
    parameters = blank(Parameters, batch_stride=dims, batch_size=dims, epilogue=none)
    return Kernel.of("split_k_reduce", "kernels/split_k_reduce.cu", constants, parameters, threads=32 * _WARPS)


def launch(problem: Problem, partials: Output, split_k: int) -> KernelLaunch:
    """The launch that adds the partial products into the output."""
    by_lines = problem.transposed if partials.along_m else problem
    out, batch, lines = problem.out, problem.batch, by_lines.out
    missing_dims = MAX_BATCH_DIMS - len(batch)
    vectors = partials.batch[0] // split_k * partials.lines * partials.line_stride // _VECTOR
    turns = next((warps for warps in _TURNS if 2 * warps >= split_k), _WARPS)
    steps = (lines.row_stride, *out.batch_strides, lines.columns)
    is_aligned = out.alignment >= min(ALIGNMENT, _VECTOR * out.dtype.itemsize) and not any(
        step % _VECTOR for step in steps
    )
    parameters = Parameters(
        partial=Address("workspace", partials.offset),
        out=Address("out"),
        line_stride=lines.row_stride,
        element_stride=lines.column_stride,
        batch_stride=(*out.batch_strides, *(0,) * missing_dims),
        pitch=partials.line_stride,
        vectors=vectors,
        lines=partials.lines,
        length=partials.length,
        split_k=split_k,
        out_is_aligned=int(lines.column_stride == 1 and is_aligned),
        batch_size=(*batch, *(1,) * missing_dims),
        epilogue=EpilogueParameters.of(by_lines.epilogue, MAX_BATCH_DIMS),
    )
    return KernelLaunch(
        _kernel(partials.dtype, out.dtype, turns, by_lines.epilogue is not None),
        parameters,
        grid=(math.ceil(vectors / (32 * _WARPS // turns)), 1, 1),
        awaits_predecessor=True,
    )
