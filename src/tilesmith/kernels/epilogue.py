"""What the kernels do to sums before they store them: the constants and parameters of epilogue.cuh."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, TypeAlias

from tilesmith.core.params import (
    Address,
    Int32,
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
from tilesmith.kernels.element import ELEMENT_TYPES, ElementType


class Activation(KernelEnum):
    """The functions of core.epilogue.ACTIVATIONS."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4

    @classmethod
    def of(cls, spec: EpilogueSpec | None) -> "Activation":
        return cls.NONE if spec is None or spec.activation is None else cls[spec.activation.upper()]


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
    """A kernel has any epilogue, or none at all: then it stores sums as they are."""

    any: bool

    def enums(self) -> Iterator[type[KernelEnum]]:
        yield from (Activation, BiasOf, ElementType)


@dataclass(frozen=True, kw_only=True)
class EpilogueParameters(ParameterBlock):
    """The parameters of an epilogue. Without one they are there and not read."""

    factors: Annotated[Pointer, Member("tilesmith::Vector<float, 2>", 8, 8)]  # of the sums, and of the residual
    is_scaled: Int32  # by the factors; or else they are not set, and 1
    activation: Int32
    bias: Annotated[Pointer, to("const void")]
    bias_stride: Int64
    bias_of: Int32
    bias_type: Int32
    residual: Annotated[Pointer, to("const void")]
    residual_stride_m: Int64
    residual_stride_n: Int64
    residual_batch_strides: Int64s
    residual_type: Int32

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
            is_scaled=int(spec.is_scaled),
            activation=Activation.of(spec),
            bias=None if bias is None else Address("bias"),
            bias_stride=0 if bias is None else bias.row_stride + bias.column_stride,  # one of them is 0
            bias_of=BiasOf.bias(bias),
            bias_type=0 if bias is None else ELEMENT_TYPES[bias.dtype],
            residual=None if residual is None else Address("residual"),
            residual_stride_m=0 if residual is None else residual.row_stride,
            residual_stride_n=0 if residual is None else residual.column_stride,
            residual_batch_strides=(*batch_strides, *(0 for _ in range(max(batch_dims, 1) - len(batch_strides)))),
            residual_type=0 if residual is None else ELEMENT_TYPES[residual.dtype],
        )


_NOTHING: Final = EpilogueSpec(activation=None, bias=None, residual=None, is_scaled=False)


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


# Whether A and B are read in vectors, and whether there may be an epilogue.
Reads: TypeAlias = tuple[bool, bool, bool]


def kind_of_reads(a_vectors: bool, b_vectors: bool, epilogue: EpilogueSpec | None) -> Reads:
    """A kernel that reads single values may have any epilogue, and asks whether there is one: so there are fewer."""
    return a_vectors, b_vectors, epilogue is not None or not (a_vectors and b_vectors)


def kinds_of_reads() -> Iterator[Reads]:
    """All that there are."""
    for a, b in itertools.product((True, False), repeat=2):
        yield from ((a, b, has_epilogue) for has_epilogue in epilogues_with_reads(a and b))


def epilogues_with_reads(in_vectors: bool) -> tuple[bool, ...]:
    """Whether kernels that read so may have an epilogue."""
    return (False, True) if in_vectors else (True,)
