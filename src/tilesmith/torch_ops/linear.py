"""The operator `tilesmith::linear`, and everything PyTorch wants to know about it.

It is `activation(x @ weight.T + bias) + residual` in the kernels of one product. `fused` launches them; `composed` is
the same out of a product and torch's functions, for those who must see the parts: transforms and distributed tensors.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake, register_vmap
from torch.nn import functional

from tilesmith.core.accuracy import Numerics, numerics
from tilesmith.core.checks import check_linear_shapes, check_linear_types, common_dtype, result_dtype
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.package import NAMESPACE
from tilesmith.core.packed import PackedPair
from tilesmith.runtime.executor import multiply
from tilesmith.runtime.registry import executor_on
from tilesmith.torch_ops import dispatch
from tilesmith.torch_ops import matmul as op

_library = Library(NAMESPACE, "FRAGMENT")
_library.define(
    "linear(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, *, "
    "str? activation=None, str? accuracy=None, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

linear = getattr(torch.ops, NAMESPACE).linear.default

_FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def _silu_derivative(grad: Tensor, sums: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, sums)  # type: ignore[no-any-return]
    sigmoid = sums.sigmoid()  # aten's own has no derivative
    return grad * sigmoid * (1 + sums * (1 - sigmoid))


# Each is called with the gradient and with what the function was applied to.
_DERIVATIVES: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda grad, sums: torch.ops.aten.threshold_backward(grad, sums, 0),
    "gelu": lambda grad, sums: torch.ops.aten.gelu_backward(grad, sums),
    "gelu_tanh": lambda grad, sums: torch.ops.aten.gelu_backward(grad, sums, approximate="tanh"),
    "silu": _silu_derivative,
}


def is_plain(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> bool:
    """Whether PyTorch's dispatcher has nothing to do for any of them: see `dispatch.is_plain`."""
    if not dispatch.is_plain(x, weight):
        return False
    if bias is None and residual is None:
        return True
    return dispatch.is_plain(weight if bias is None else bias, x if residual is None else residual)


def fused(
    x: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    resolved: Numerics,
    out_dtype: torch.dtype | None,
    packed: PackedPair | None = None,
) -> Tensor:
    """Multiplies CUDA tensors, with all that follows in the kernels of the product; b is the weight's transpose."""
    epilogue = epilogue_of(x, b, bias, residual, activation, out_dtype)
    return multiply(x, b, resolved, out_dtype, None, packed, epilogue)


def composed(
    x: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
    packed: PackedPair | None = None,
) -> Tensor:
    """Computes it as a product of ours and torch's functions of that; b is the weight's transpose."""
    if packed is None:
        result = op.product(x, b, accuracy, out_dtype)
    else:
        result = op.packed_product(x, b, packed, accuracy, out_dtype)
    if bias is not None:
        result = result + bias.to(result.dtype)
    return finished(result, activation, residual)


def finished(sums: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
    """`activation(sums) + residual`, in the type of the sums: autocast may have made it another than the residual's."""
    result = sums if activation is None else _FUNCTIONS[activation](sums)
    return result if residual is None else result + residual.to(result.dtype)


def epilogue_of(
    x: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
) -> Epilogue | None:
    if bias is None and residual is None and activation is None:
        return None
    if bias is not None and (out_dtype is not None or x.dtype != b.dtype):
        bias = bias.to(result_dtype(common_dtype(x, b), out_dtype))
    return Epilogue(bias, activation, residual)


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    dispatch.refuse_forward_mode("linear")
    check_linear_shapes(x, weight, bias, residual, activation)
    dtype = check_linear_types(x, weight, bias, residual, accuracy, out_dtype)
    executor = executor_on(x.device.type)
    if executor is not None:
        b = weight.mT
        epilogue = epilogue_of(x, b, bias, residual, activation, out_dtype)
        return executor.multiply(x, b, numerics(accuracy, x.dtype), out_dtype, epilogue=epilogue)
    sums = functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return finished(sums, activation, residual).contiguous()


_library.impl("linear", _linear, "CUDA")
_library.impl("linear", _linear, "CPU")
_library.impl("linear", dispatch.autocast_kernel(linear, "cuda"), "AutocastCUDA")
_library.impl("linear", dispatch.autocast_kernel(linear, "cpu"), "AutocastCPU")


def _linear_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    dispatch.refuse_forward_mode("linear")
    check_linear_shapes(x, weight, bias, residual, activation)
    dtype = check_linear_types(x, weight, bias, residual, accuracy, out_dtype)
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


register_fake(f"{NAMESPACE}::linear", _linear_fake, lib=_library)


def _of_all_four(facts: tuple[Any, ...], default: Any) -> tuple[Any, ...]:
    """One fact for each of x, weight, bias and residual: PyTorch leaves out arguments at the end that are None."""
    return (*facts, default, default)[:4]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    x, weight, bias, residual = inputs
    need_x, need_weight, need_bias, _ = _of_all_four(ctx.needs_input_grad, False)
    ctx.activation = keyword_only_inputs["activation"]
    ctx.accuracy = keyword_only_inputs["accuracy"]
    ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
    ctx.by_columns = op.is_by_columns(x), op.is_by_columns(weight)
    ctx.result_dtype = output.dtype
    ctx.residual_shape = None if residual is None else residual.shape
    differentiates = ctx.activation is not None and (need_x or need_weight or need_bias)
    ctx.save_for_backward(
        x if need_weight or differentiates else None,
        weight if need_x or differentiates else None,
        bias if differentiates else None,
    )


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    need_x, need_weight, need_bias, need_residual = _of_all_four(ctx.needs_input_grad, False)
    x_dtype, weight_dtype, bias_dtype = ctx.dtypes
    grad_x = grad_weight = grad_bias = grad_residual = None
    if need_residual:
        grad_residual = grad.sum_to_size(ctx.residual_shape)
    if ctx.activation is not None and (need_x or need_weight or need_bias):
        # Who wants to save the sums instead calls tilesmith.linear, not the operator.
        sums = linear(x, weight, bias, accuracy=ctx.accuracy, out_dtype=ctx.result_dtype)
        grad = _DERIVATIVES[ctx.activation](grad, sums)
    dtype = torch.promote_types(x_dtype, weight_dtype)
    x_by_columns, weight_by_columns = ctx.by_columns
    if need_x:
        grad_x = op.stored_as(x_by_columns, grad.to(dtype), weight, ctx.accuracy).to(x_dtype)
    rows = op.as_rows(grad)
    if need_weight:
        own = op.stored_as(weight_by_columns, rows.to(dtype).mT, op.as_rows(x), ctx.accuracy)
        grad_weight = own.to(weight_dtype)
    if need_bias:
        grad_bias = rows.sum(0).to(bias_dtype)
    return grad_x, grad_weight, grad_bias, grad_residual


register_autograd(f"{NAMESPACE}::linear", _backward, setup_context=_setup_context, lib=_library)


def _linear_vmap(
    info: Any,
    in_dims: tuple[int | None, ...],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    **options: Any,
) -> tuple[Tensor, int]:
    x_dim, weight_dim, bias_dim, residual_dim = _of_all_four(in_dims, None)

    def mapped_first(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)

    rows = mapped_first(x, x_dim)
    is_vector = rows.dim() == 2
    if is_vector:
        rows = rows.unsqueeze(1)

    def aligned(tensor: Tensor, dim: int | None) -> Tensor:
        """The tensor with ones between the mapped dimension and its own, so that it has the rank of the result."""
        first, *own = mapped_first(tensor, dim).shape
        return mapped_first(tensor, dim).reshape(first, *(1,) * (rows.dim() - 1 - len(own)), *own)

    sums = op.matmul(rows, aligned(weight, weight_dim).mT, **options)
    if bias is not None:
        sums = sums + aligned(bias, bias_dim)
    result = finished(sums, activation, None if residual is None else aligned(residual, residual_dim))
    return result.squeeze(-2) if is_vector else result, 0


register_vmap(f"{NAMESPACE}::linear", _linear_vmap, lib=_library)
