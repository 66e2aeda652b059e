"""What users call to multiply."""

import warnings

import torch

from tilesmith.core.accuracy import check_accuracy, numerics
from tilesmith.core.checks import (
    OUT_DTYPES,
    check_call,
    check_dense,
    check_linear_dense,
    check_linear_shapes,
    check_linear_types,
    check_operands,
    check_out,
    check_packable,
    check_packed_weight,
    is_mixed,
    product_shape,
)
from tilesmith.core.packed import Packed, unpacked, version_of
from tilesmith.runtime import executor
from tilesmith.torch_ops import dispatch, distributed
from tilesmith.torch_ops import linear as op_linear
from tilesmith.torch_ops import matmul as op


def matmul(
    a: torch.Tensor | Packed,
    b: torch.Tensor | Packed,
    *,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The matrix product of two tensors, with the semantics of `torch.matmul`.

    On a GPU it is computed by Tilesmith's own kernels; CPU tensors are multiplied by torch.

    Args:
        a, b: tensors of one type on one device; 1-D, 2-D, or batched with broadcasting, with any strides. Or what
            `pack` made of them. With an explicit accuracy of "fp32" or "tf32", one may be float32 and the other
            float16 or bfloat16; the result is float32.
        accuracy: how exact a float32 product must be: as torch's float32 ("fp32"), as torch's TF32 ("tf32"), or one
            chain of float32 multiply-adds ("ieee"). None follows `torch.backends.cuda.matmul`.
        out_dtype: a wider type for the result: float32 for 16-bit floats, int32 for 8- and 16-bit integers.
        out: a tensor to write the result into.

    >>> a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])
    >>> matmul(a, b)
    tensor([[11.]])
    """
    if torch.compiler.is_compiling() or out is not None or not dispatch.is_plain(a, b):  # type: ignore[arg-type]
        return _dispatched(a, b, accuracy, out_dtype, out)
    return executor.multiply(a, b, numerics(accuracy, a.dtype), out_dtype)  # type: ignore[arg-type]


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | Packed,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`activation(x @ weight.T + bias) + residual`, as `torch.nn.functional.linear` and what often follows it.

    On a GPU all of it is done by the kernels of the product, before they store it. CPU tensors go to torch.

    Args:
        x: a vector, a matrix or a batch, of features in its last dimension; floating-point.
        weight: a matrix (out_features, in_features), or what `pack` made of its transpose.
        bias: a vector (out_features).
        activation: "relu", "gelu", "gelu_tanh" (torch's `approximate="tanh"`) or "silu".
        residual: a tensor of the result's type that is added last; it is broadcast to the result's shape.
        accuracy, out_dtype: as for `matmul`.

    >>> x, weight, bias = torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0], [5.0, -6.0]]), torch.tensor([0.5, 0.5])
    >>> linear(x, weight, bias, activation="relu", residual=x)
    tensor([12.5000,  2.0000])
    """
    if torch.compiler.is_compiling() or not op_linear.is_plain(x, weight, bias, residual):  # type: ignore[arg-type]
        return _dispatched_linear(x, weight, bias, activation, residual, accuracy, out_dtype)
    assert isinstance(weight, torch.Tensor)
    check_linear_shapes(x, weight, bias, residual, activation)
    check_linear_types(x, weight, bias, residual, accuracy, out_dtype)
    return op_linear.fused(x, weight.mT, bias, residual, activation, numerics(accuracy, x.dtype), out_dtype)


def pack(tensor: torch.Tensor, *, first: bool = False, accuracy: str | None = None) -> Packed:
    """Prepares an operand once for many products: a weight that does not change.

    On Hopper, `matmul` splits float32 operands into 16-bit terms each time. A packed operand keeps its terms, which
    take as much memory again as the tensor, and its part of that work falls away. The tensor is kept too, and must not
    be changed in place from then on. For all else (other types, other GPUs, the CPU, under autocast) the tensor is all
    that is kept, and products are as fast as without `pack`.

    Products with it have gradients with respect to the other operand only. They cannot be compiled by `torch.compile`.

    Args:
        tensor: a `b` of products; 1-D, 2-D or batched, with any strides.
        first: whether it is an `a` instead.
        accuracy: that of the products, which is theirs unless they ask for another: that raises.

    >>> weight = pack(torch.tensor([[3.0], [4.0]]))
    >>> matmul(torch.tensor([[1.0, 2.0]]), weight)
    tensor([[11.]])
    """
    check_packable(tensor)
    tensor = tensor.detach()
    if tensor.dtype != torch.float32:
        return Packed(tensor, first, None, None, version_of(tensor))
    own_accuracy = numerics(accuracy).accuracy
    terms = executor.pack(tensor, own_accuracy, first=first) if dispatch.is_plain(tensor, tensor) else None
    return Packed(tensor, first, own_accuracy, terms, version_of(tensor))


def _dispatched(
    a: torch.Tensor | Packed,
    b: torch.Tensor | Packed,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """A product that PyTorch's dispatcher takes part in: autograd, autocast, modes, transforms, distributed tensors,
    `out`; or one with a packed operand."""
    check_accuracy(accuracy)
    asked, packed = accuracy, None
    if isinstance(a, Packed) or isinstance(b, Packed):
        if torch.compiler.is_compiling():
            raise NotImplementedError("tilesmith.matmul with a packed operand does not work inside of torch.compile")
        a, b, packed, accuracy = unpacked(a, b, accuracy)
    check_dense(a, b)
    is_distributed = distributed.is_distributed(a, b, out)
    if asked is None and accuracy is not None and is_mixed(a.dtype, b.dtype):
        check_operands(a, b)  # raises: that one of them is packed does not say that they may be mixed
    if out is None:
        if packed is None:
            return op.product(a, b, accuracy, out_dtype)
        return op.packed_product(a, b, packed, accuracy, out_dtype)
    if a.is_cpu and a.dtype not in OUT_DTYPES and not is_distributed:
        return torch.matmul(a, b, out=out)  # torch's CPU product takes more types than our kernels
    check_call(a, b, accuracy)
    check_out(a, b, out, out_dtype)
    shape = product_shape(a.shape, b.shape)
    if is_distributed:
        if tuple(out.shape) != shape:
            raise RuntimeError(
                f"a distributed out cannot be resized: it has shape {list(out.shape)}, not {list(shape)}"
            )
        return out.copy_(op.product(a, b, accuracy, out.dtype))  # copy_ redistributes
    if tuple(out.shape) != shape:
        if out.numel() > 0:
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, "
                f"which does not match the required output shape {list(shape)}.",
                stacklevel=3,
            )
        out.resize_(shape)
    if not torch.compiler.is_compiling() and out.is_neg():
        return out.copy_(op.product(a, b, accuracy, out.dtype))  # copy_ knows how to write with the sign reversed
    a_packed, b_packed = packed or (None, None)
    op.matmul_out(a, b, out=out, accuracy=accuracy, a_packed=a_packed, b_packed=b_packed)
    return out


def _dispatched_linear(
    x: torch.Tensor,
    weight: torch.Tensor | Packed,
    bias: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """A `linear` that PyTorch's dispatcher takes part in, or one with a packed weight."""
    check_accuracy(accuracy)
    asked, packed = accuracy, None
    if isinstance(weight, Packed):
        if torch.compiler.is_compiling():
            raise NotImplementedError("tilesmith.linear with a packed weight does not work inside of torch.compile")
        check_packed_weight(weight.tensor)
        x, transposed, packed, accuracy = unpacked(x, weight, accuracy)
        weight = transposed.mT
    added = {name: tensor for name, tensor in (("bias", bias), ("residual", residual)) if tensor is not None}
    check_linear_dense(x=x, weight=weight, **added)
    check_linear_shapes(x, weight, bias, residual, activation)
    if not (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")):
        check_linear_types(x, weight, bias, residual, asked, out_dtype)

    if packed is not None and op_linear.is_plain(x, weight, bias, residual):
        resolved = numerics(accuracy, x.dtype)
        return op_linear.fused(x, weight.mT, bias, residual, activation, resolved, out_dtype, packed)
    is_distributed = distributed.is_distributed(x, weight) or distributed.is_distributed(bias, residual)
    if packed is not None or is_distributed or dispatch.is_transformed():
        return op_linear.composed(x, weight.mT, bias, residual, activation, accuracy, out_dtype, packed)
    if activation is not None and torch.is_grad_enabled():
        differentiated = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        if differentiated:
            # The operator would compute the sums again for the gradient: here they are kept.
            sums = op_linear.linear(x, weight, bias, accuracy=accuracy, out_dtype=out_dtype)
            return op_linear.finished(sums, activation, residual)
    return op_linear.linear(  # type: ignore[no-any-return]
        x, weight, bias, residual, activation=activation, accuracy=accuracy, out_dtype=out_dtype
    )
