"""What the kernels do to sums before they store them: the constants and parameters of epilogue.cuh."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

import torch

from tilesmith.core.params import (
    Address,
    Int64,
    Int64s,
    KernelConstants,
    KernelEnum,
    Member,
    ParameterBlock,
    Pointer,
    to,
)
from tilesmith.core.problem import ALIGNMENT, EpilogueSpec, Matrix
from tilesmith.kernels.element import CUDA_TYPES


class Activation(KernelEnum):
    """The functions of core.epilogue.ACTIVATIONS."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4


class BiasOf(KernelEnum):
    """Which way the bias runs."""

    NOTHING = 0
    COLUMNS = 1
    ROWS = 2

    @classmethod
    def bias(cls, bias: Matrix | None) -> "BiasOf":
        if bias is None:
            return cls.NOTHING
        return cls.ROWS if bias.column_stride == 0 and bias.row_stride != 0 else cls.COLUMNS


@dataclass(frozen=True, kw_only=True)
class EpilogueConstants(KernelConstants):
    """The constants of a kernel that has an epilogue, or stores sums as they are."""

    activation: Activation
    is_scaled: bool
    bias_of: BiasOf
    Bias: str
    has_residual: bool
    Residual: str
    residual_pairs: bool  # two neighbours in a row are read at once

    @classmethod
    def of(cls, spec: EpilogueSpec | None) -> "EpilogueConstants":
        if spec is None:
            return _no_constants()
        bias, residual = spec.bias, spec.residual
        return cls(
            activation=Activation[(spec.activation or "none").upper()],
            is_scaled=spec.is_scaled,
            bias_of=BiasOf.bias(bias),
            Bias=CUDA_TYPES[torch.float32 if bias is None else bias.dtype],
            has_residual=residual is not None,
            Residual=CUDA_TYPES[torch.float32 if residual is None else residual.dtype],
            residual_pairs=residual is not None and elements_at_once(residual) > 1,
        )


@dataclass(frozen=True, kw_only=True)
class EpilogueParameters(ParameterBlock):
    """The parameters of an epilogue. Without one they are there and not read."""

    factors: Annotated[Pointer, Member("tilesmith::Vector<float, 2>", 8, 8)]  # of the sums, and of the residual
    bias: Annotated[Pointer, to("const epilogue::Bias")]
    bias_stride: Int64
    residual: Annotated[Pointer, to("const epilogue::Residual")]
    residual_stride_m: Int64
    residual_stride_n: Int64
    residual_batch_strides: Int64s

    @classmethod
    def of(cls, spec: EpilogueSpec | None, batch_dims: int, *, fastest_first: bool = False) -> "EpilogueParameters":
        """`batch_dims`: those that the kernel walks. `fastest_first`: it has them in the opposite order."""
        if spec is None:
            return _no_parameters(batch_dims)
        bias, residual = spec.bias, spec.residual
        batch_strides = () if residual is None else residual.batch_strides
        if fastest_first:
            batch_strides = batch_strides[::-1]
        return cls(
            factors=Address("factors") if spec.is_scaled else None,
            bias=None if bias is None else Address("bias"),
            bias_stride=0 if bias is None else bias.row_stride + bias.column_stride,  # one of them is 0
            residual=None if residual is None else Address("residual"),
            residual_stride_m=0 if residual is None else residual.row_stride,
            residual_stride_n=0 if residual is None else residual.column_stride,
            residual_batch_strides=(*batch_strides, *(0 for _ in range(max(batch_dims, 1) - len(batch_strides)))),
        )


_NOTHING: Final = EpilogueSpec(activation=None, bias=None, residual=None, is_scaled=False)


@cache
def _no_constants() -> EpilogueConstants:
    return EpilogueConstants.of(_NOTHING)


@cache
def _no_parameters(batch_dims: int) -> EpilogueParameters:
    return EpilogueParameters.of(_NOTHING, batch_dims)


def elements_at_once(residual: Matrix) -> int:
    """How many neighbours in a row can be read together, if their first column is a multiple of that: 16 bytes of them,
    two, or one."""
    steps = (residual.columns, residual.row_stride, *residual.batch_strides)
    if residual.column_stride == 1:
        for elements in (ALIGNMENT // residual.dtype.itemsize, 2):
            if residual.alignment >= elements * residual.dtype.itemsize and not any(step % elements for step in steps):
                return elements
    return 1
