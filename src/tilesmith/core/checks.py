"""What the functions of this package take, and what they raise for all else.

The errors are torch's: the same exception types, and messages that name shapes, types and devices. The predicates are
also for who asks first: an override leaves to torch what would be an error here.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch.autograd import forward_ad

from tilesmith.core import vocabulary
from tilesmith.core.accuracy import may_mix
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue

# The element types that can be multiplied, each with the types its result may have.
OUT_DTYPES: Final[dict[torch.dtype, tuple[torch.dtype, ...]]] = {
    getattr(torch, operand): tuple(getattr(torch, result) for result in results)
    for operand, results in vocabulary.OUT_DTYPES.items()
}

SIXTEEN_BITS: Final = (torch.float16, torch.bfloat16)  # what float32 can be multiplied with
LINEAR_DTYPES: Final = (torch.float64, torch.float32, *SIXTEEN_BITS)

# Operands.


def check_dense(a: object, b: object) -> None:
    """Raises for operands of `matmul` that are not dense tensors."""
    for name, operand in (("a", a), ("b", b)):
        tensor = _tensor("matmul", name, operand)
        if kind := _not_dense(tensor):
            raise NotImplementedError(
                f"tilesmith.matmul takes dense tensors, but {name} has {kind} "
                f"(shape {list(tensor.shape)}, {tensor.dtype} on {tensor.device})"
            )


def _tensor(function: str, name: str, argument: object) -> torch.Tensor:
    if not isinstance(argument, torch.Tensor):
        raise TypeError(f"{function}(): argument {name!r} must be Tensor, not {type(argument).__name__}")
    return argument


def _not_dense(tensor: torch.Tensor) -> str | None:
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}"
    return "a quantized type" if tensor.is_quantized else None


def check_operands(a: torch.Tensor, b: torch.Tensor, *, may_mix: bool = False) -> None:
    """Raises what torch raises for operands that have no product, whatever their shapes."""
    check_dense(a, b)
    if a.device == b.device and a.dtype == b.dtype and a.dtype in OUT_DTYPES:
        return
    shapes = f"shapes {list(a.shape)} and {list(b.shape)}"
    if a.device != b.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but a is on {a.device} and b is on {b.device} ({shapes})"
        )
    if a.dtype != b.dtype and not (may_mix and is_mixed(a.dtype, b.dtype)):
        raise RuntimeError(
            f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype} ({shapes} on {a.device})"
        )
    if a.dtype not in OUT_DTYPES:
        raise NotImplementedError(
            f"tilesmith.matmul is not implemented for {a.dtype} ({shapes} on {a.device}); "
            f"it takes {', '.join(str(d).removeprefix('torch.') for d in OUT_DTYPES)}"
        )


def check_call(a: torch.Tensor, b: torch.Tensor, accuracy: str | None) -> None:
    """Raises for operands that have no product in a call that asks for this accuracy."""
    check_operands(a, b, may_mix=may_mix(accuracy))


def check_packable(tensor: torch.Tensor) -> None:
    """Raises for what `pack` cannot make a constant operand of."""
    check_dense(tensor, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "tilesmith.pack makes a constant of a tensor, and this one requires grad: pass tensor.detach(), or call it "
            f"under torch.no_grad() (shape {list(tensor.shape)}, {tensor.dtype} on {tensor.device})"
        )
    if tensor.dim() == 0:
        raise RuntimeError("tilesmith.pack takes tensors that are at least 1D, and this one is 0D")


# The output.


def check_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    """Raises what torch raises for an `out` that cannot take the product of a and b.

    A wrong shape is not among them: torch resizes `out`, and so does `tilesmith.matmul`.
    """
    _tensor("matmul", "out", out)
    if out.layout != torch.strided:
        raise NotImplementedError(f"tilesmith.matmul writes dense tensors, but out has layout {out.layout}")
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in (a, b, out)):
        raise NotImplementedError("matmul(): functions with out=... arguments don't support forward mode AD.")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out)):
        raise RuntimeError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if out.device != a.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but out is on {out.device} and a and b are on {a.device}"
        )
    expected = result_dtype(common_dtype(a, b), out_dtype)
    if out.dtype != expected:
        raise RuntimeError(f"Expected out tensor to have dtype {expected}, but got {out.dtype} instead")
    if overlaps_itself(out):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            f"location (out has shape {list(out.shape)} and strides {list(out.stride())}). "
            "Please clone() the tensor before performing the operation."
        )


def overlaps_itself(out: torch.Tensor) -> bool:
    """Whether a stride of 0 gives several elements one place in memory."""
    return any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True))


# Shapes and types.


def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of `torch.matmul`'s result, or its error.

    >>> product_shape((7, 1, 3, 4), (5, 4, 2))
    (7, 5, 3, 2)
    """
    if len(a) == 0 or len(b) == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {len(a)}D and {len(b)}D")
    a_rows, b_columns = tuple(a[-2:-1]), (b[-1],) if len(b) > 1 else ()
    b_rows = b[-2] if len(b) > 1 else b[0]
    if _differ(a[-1], b_rows):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({'x'.join(map(str, a))} and {'x'.join(map(str, b))}): "
            f"the inner dimensions {a[-1]} and {b_rows} differ"
        )
    batch = broadcast(a[:-2], b[:-2])
    return (*batch, *a_rows, *b_columns)


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The batch dimensions that these broadcast to. torch.broadcast_shapes knows too, but first imports SymPy."""
    if not a and not b:
        return ()
    rank = max(len(a), len(b))
    sizes: list[int] = []
    for x, y in zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True):
        if _is_one(y):
            sizes.append(x)
        elif _is_one(x):
            sizes.append(y)
        elif _differ(x, y):
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension "
                f"{len(sizes)}: the batch dimensions {list(a)} and {list(b)} cannot be broadcast together"
            )
        else:
            sizes.append(x)
    return tuple(sizes)


def _is_one(size: int) -> bool:
    """Whether a size is 1. One that only the run of a compiled program will tell is taken for more, as by torch."""
    if not isinstance(size, torch.SymInt):
        return size == 1
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(size == 1)


def _differ(x: int, y: int) -> bool:
    """Whether two sizes differ. Where only the run of a compiled program will tell, that is to check it."""
    if not isinstance(x, torch.SymInt) and not isinstance(y, torch.SymInt):
        return x != y
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    if not guard_or_true(x == y):
        return True
    torch._check(x == y)
    return False


def can_be_broadcast(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a tensor of one shape expands to another.

    >>> can_be_broadcast((3, 1), (2, 3, 4)), can_be_broadcast((2, 3), (3,))
    (True, False)
    """
    skipped = len(to) - len(shape)
    if skipped == 0 and shape == to:
        return True
    return skipped >= 0 and all(size == 1 or size == wanted for size, wanted in zip(shape, to[skipped:], strict=True))


def is_mixed(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether one is float32 and the other has 16 bits."""
    return (a == torch.float32 and b in SIXTEEN_BITS) or (b == torch.float32 and a in SIXTEEN_BITS)


def is_allowed_mix(a: torch.dtype, b: torch.dtype, accuracy: str | None) -> bool:
    """Whether a call mixes types, and says how exact that is to be."""
    return may_mix(accuracy) and is_mixed(a, b)


def common_dtype(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    """The type of both operands; of mixed ones float32."""
    return torch.float32 if is_mixed(a.dtype, b.dtype) else a.dtype


def result_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None) -> torch.dtype:
    """The type of the result: the operands' own, or a wider one where that means something."""
    if out_dtype is None:
        return dtype
    if out_dtype not in OUT_DTYPES[dtype]:
        raise RuntimeError(
            f"out_dtype {out_dtype} is not possible for operands of {dtype}; "
            f"possible are {', '.join(map(str, OUT_DTYPES[dtype]))}"
        )
    return out_dtype


# Epilogues, and the arguments of `linear`.


def check_epilogue(epilogue: Epilogue, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises for an epilogue that a product of a and b, of this type, cannot have."""
    shape = product_shape(a.shape, b.shape)
    if not dtype.is_floating_point:
        raise NotImplementedError(f"a product of {dtype} is stored as it is: only floating-point ones have an epilogue")
    if epilogue.activation not in (None, *ACTIVATIONS):
        raise ValueError(f"activation is None, {', '.join(map(repr, ACTIVATIONS))}, not {epilogue.activation!r}")
    for name, added in (("bias", epilogue.bias), ("residual", epilogue.residual)):
        if added is not None and added.device != a.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} is on {added.device} and the operands "
                f"are on {a.device}"
            )
        if added is not None and added.dtype not in (dtype, common_dtype(a, b)):
            raise RuntimeError(f"{name} is {added.dtype}, but the operands or the result have {dtype}")
    bias, residual = epilogue.bias, epilogue.residual
    columns = b.shape[-1] if b.dim() > 1 else 1
    if bias is not None and tuple(bias.shape) != (columns,):
        raise RuntimeError(f"bias has shape {list(bias.shape)}, but the product has {columns} columns")
    if residual is not None and not can_be_broadcast(residual.shape, shape):
        raise RuntimeError(f"residual of shape {list(residual.shape)} does not broadcast to the result's {list(shape)}")


def check_linear_dense(**arguments: object) -> None:
    """Raises for arguments of `linear` that are not dense tensors."""
    for name, argument in arguments.items():
        if kind := _not_dense(_tensor("linear", name, argument)):
            raise NotImplementedError(f"tilesmith.linear takes dense tensors, but {name} has {kind}")


def check_activation(activation: str) -> None:
    """Raises for a name that is not one of ACTIVATIONS."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))} or None, not {activation!r}")


def check_packed_weight(packed: torch.Tensor) -> None:
    """Raises for a packed tensor that is no weight of `linear`."""
    if packed.dim() != 2:
        raise RuntimeError(f"weight must be packed from a matrix, but that had shape {list(packed.shape)}")


def check_linear_shapes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
) -> None:
    """Raises where the shapes of `linear`'s arguments do not go together."""
    if activation is not None:
        check_activation(activation)
    if weight.dim() != 2:
        raise RuntimeError(
            f"weight must be a matrix (out_features, in_features), but it has shape {list(weight.shape)}; "
            "tilesmith.matmul multiplies by vectors and batches"
        )
    columns, depth = weight.shape
    if x.dim() == 0 or x.shape[-1] != depth:
        raise RuntimeError(
            f"x must have {depth} features in its last dimension, as weight of shape {list(weight.shape)} has, "
            f"but it has shape {list(x.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != columns):
        raise RuntimeError(f"bias must have shape [{columns}], but it has shape {list(bias.shape)}")
    if residual is not None and not can_be_broadcast(residual.shape, shape := (*x.shape[:-1], columns)):
        raise RuntimeError(
            f"residual of shape {list(residual.shape)} cannot be broadcast to the result's shape {list(shape)}"
        )


def check_linear_types(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
) -> torch.dtype:
    """The type of the result of `linear`; raises where types or devices do not go together."""
    if x.dtype != weight.dtype and not is_allowed_mix(x.dtype, weight.dtype, accuracy):
        raise RuntimeError(f"expected x and weight to have the same dtype, but got: {x.dtype} != {weight.dtype}")
    if x.dtype not in LINEAR_DTYPES:
        raise NotImplementedError(
            f"tilesmith.linear is not implemented for {x.dtype}; "
            f"it takes {', '.join(str(d).removeprefix('torch.') for d in LINEAR_DTYPES)}"
        )
    dtype = result_dtype(common_dtype(x, weight), out_dtype)
    if bias is not None and bias.dtype not in (x.dtype, weight.dtype, dtype):
        raise RuntimeError(f"expected bias to have the dtype of weight, but got: {bias.dtype} != {weight.dtype}")
    if residual is not None and residual.dtype != dtype:
        raise RuntimeError(f"expected residual to have the dtype of the result, but got: {residual.dtype} != {dtype}")
    for name, tensor in (("weight", weight), ("bias", bias), ("residual", residual)):
        if tensor is not None and tensor.device != x.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but x is on {x.device} and {name} is on "
                f"{tensor.device}"
            )
    return dtype
