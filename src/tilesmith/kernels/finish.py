"""How the kernels finish sums before they store them: finish.cuh's constants and arguments."""

import struct
from enum import IntEnum
from typing import Final

import torch

from tilesmith.kernels.operand import CUDA_TYPES
from tilesmith.plan import Address, Constant
from tilesmith.problem import ALIGNMENT, Finish, Matrix

_CUDA_TYPES: Final = {**CUDA_TYPES, torch.float64: "double"}
_ACTIVATIONS: Final = (None, "relu", "gelu", "gelu_tanh", "silu")  # enum Activation of finish.cuh


class BiasOf(IntEnum):
    """enum BiasOf of finish.cuh."""

    NOTHING = 0
    COLUMNS = 1
    ROWS = 2


def bias_of(finish: Finish | None) -> BiasOf:
    """Which way the bias runs."""
    if finish is None or finish.bias is None:
        return BiasOf.NOTHING
    is_of_rows = finish.bias.column_stride == 0 and finish.bias.row_stride != 0
    return BiasOf.ROWS if is_of_rows else BiasOf.COLUMNS


def constants(finish: Finish | None) -> dict[str, Constant]:
    """Of a kernel that finishes sums, or stores them as they are."""
    bias = None if finish is None else finish.bias
    residual = None if finish is None else finish.residual
    return {
        "activation": _ACTIVATIONS.index(None if finish is None else finish.activation),
        "is_scaled": finish is not None and finish.is_scaled,
        "bias_of": int(bias_of(finish)),
        "Bias": _CUDA_TYPES[torch.float32 if bias is None else bias.dtype],
        "has_residual": residual is not None,
        "Residual": _CUDA_TYPES[torch.float32 if residual is None else residual.dtype],
        "residual_pairs": residual is not None and elements_at_once(residual) > 1,
    }


def arguments(finish: Finish | None, batch_rank: int, *, fastest_first: bool = False) -> bytes:
    """struct FinishArguments of finish.cuh, for so many dimensions of the batch. Nothing, if sums are stored as they
    are. `fastest_first`: the kernel has the batch's dimensions in the opposite order."""
    if finish is None:
        return b""
    bias, residual = finish.bias, finish.residual
    batch_strides = () if residual is None else residual.batch_strides
    if fastest_first:
        batch_strides = batch_strides[::-1]
    slots = max(batch_rank, 1)
    return struct.pack(
        f"<{6 + slots}q",
        0,  # both factors
        0,
        0 if bias is None else bias.row_stride + bias.column_stride,  # one of them is 0
        *(0, *((0, 0) if residual is None else (residual.row_stride, residual.column_stride))),
        *(*batch_strides, *(0 for _ in range(slots - len(batch_strides)))),
    )


def addresses(finish: Finish | None, position: int) -> tuple[Address, ...]:
    """What a launch writes into these arguments, which start at `position` of its own."""
    if finish is None:
        return ()
    found = [Address(position, "factors")] if finish.is_scaled else []
    if finish.bias is not None:
        found.append(Address(position + 8, "bias"))
    if finish.residual is not None:
        found.append(Address(position + 24, "residual"))
    return tuple(found)


def elements_at_once(residual: Matrix) -> int:
    """How many neighbours in a row can be read together, if their first column is a multiple of that: 16 bytes of them,
    two, or one."""
    steps = (residual.columns, residual.row_stride, *residual.batch_strides)
    if residual.column_stride == 1:
        for elements in (ALIGNMENT // residual.dtype.itemsize, 2):
            if residual.alignment >= elements * residual.dtype.itemsize and not any(step % elements for step in steps):
                return elements
    return 1
