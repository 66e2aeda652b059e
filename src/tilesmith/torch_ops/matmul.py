"""The torch.library operators, and everything PyTorch wants to know about them.

`tilesmith::matmul` is `torch.matmul` with two more arguments; `tilesmith::matmul_out` writes
into a given tensor. They are defined by `Library.define/impl`: `custom_op` costs 8 us more a call.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake, register_vmap

from tilesmith.core.accuracy import numerics
from tilesmith.core.checks import check_call, check_out, common_dtype, is_allowed_mix, product_shape, result_dtype
from tilesmith.core.package import NAMESPACE
from tilesmith.core.packed import PackedPair
from tilesmith.runtime.executor import multiply
from tilesmith.runtime.registry import executor_on
from tilesmith.torch_ops import dispatch
from tilesmith.torch_ops.dispatch import is_transformed, refuse_forward_mode
from tilesmith.torch_ops.vmap import as_one_batch

_library = Library(NAMESPACE, "DEF")
_library.define(
    "matmul(Tensor a, Tensor b, *, str? accuracy=None, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "matmul_out(Tensor a, Tensor b, *, Tensor(a!) out, str? accuracy=None, "
    "Tensor? a_packed=None, Tensor? b_packed=None) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)

matmul = getattr(torch.ops, NAMESPACE).matmul.default
matmul_out = getattr(torch.ops, NAMESPACE).matmul_out.default


def product(a: Tensor, b: Tensor, accuracy: str | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """The product by way of PyTorch's dispatcher, and of transforms and forward-mode AD where they are active."""
    if is_transformed():
        return _Transformed.apply(a, b, accuracy, out_dtype)  # type: ignore[no-any-return,no-untyped-call]
    return matmul(a, b, accuracy=accuracy, out_dtype=out_dtype)  # type: ignore[no-any-return]


def packed_product(
    a: Tensor, b: Tensor, packed: PackedPair, accuracy: str | None, out_dtype: torch.dtype | None
) -> Tensor:
    """The product of operands of which `pack` has made what `packed` holds. Autocast, modes and transforms have no use
    for that: they get the tensors."""
    if dispatch.is_plain(a, b):
        return multiply(a, b, numerics(accuracy, a.dtype), out_dtype, None, packed)
    with torch.no_grad():
        only_differentiated = dispatch.is_plain(a, b)
    if only_differentiated:
        return _PackedProduct.apply(a, b, packed, accuracy, out_dtype)  # type: ignore[no-any-return,no-untyped-call]
    return product(a, b, accuracy, out_dtype)


def _matmul_cuda(a: Tensor, b: Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    refuse_forward_mode("matmul")
    return multiply(a, b, numerics(accuracy, a.dtype), out_dtype)


def _matmul_cpu(a: Tensor, b: Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    refuse_forward_mode("matmul")
    executor = executor_on("cpu")
    if executor is not None:
        return executor.multiply(a, b, numerics(accuracy, a.dtype), out_dtype)
    if out_dtype is None and not is_allowed_mix(a.dtype, b.dtype, accuracy):
        return torch.matmul(a, b)
    return _wider_cpu_product(a, b, accuracy, out_dtype)


def _matmul_out(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor,
    accuracy: str | None = None,
    a_packed: Tensor | None = None,
    b_packed: Tensor | None = None,
) -> None:
    """Multiplies into `out`, through a temporary if that may overlap an operand."""
    executor = executor_on(a.device.type)
    if executor is None:
        out.copy_(_wider_cpu_product(a, b, accuracy, out.dtype))
        return
    resolved = numerics(accuracy, a.dtype)
    packed = None if a_packed is None and b_packed is None else (a_packed, b_packed)
    if _may_overlap(out, a) or _may_overlap(out, b):
        out.copy_(executor.multiply(a, b, resolved, out.dtype, None, packed))
    else:
        executor.multiply(a, b, resolved, out.dtype, out, packed)


def _wider_cpu_product(a: Tensor, b: Tensor, accuracy: str | None, out_dtype: torch.dtype | None) -> Tensor:
    check_call(a, b, accuracy)
    dtype = result_dtype(common_dtype(a, b), out_dtype)
    return torch.matmul(a.to(dtype), b.to(dtype))


def _may_overlap(x: Tensor, y: Tensor) -> bool:
    """Whether the memory from x's first element to its last touches y's."""

    def span(t: Tensor) -> tuple[int, int]:
        steps = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (steps + 1) * t.itemsize

    if x.numel() == 0 or y.numel() == 0:
        return False
    (x_first, x_end), (y_first, y_end) = span(x), span(y)
    return x_first < y_end and y_first < x_end


_library.impl("matmul", _matmul_cuda, "CUDA")
_library.impl("matmul", _matmul_cpu, "CPU")
_library.impl("matmul", dispatch.autocast_kernel(matmul, "cuda"), "AutocastCUDA")
_library.impl("matmul", dispatch.autocast_kernel(matmul, "cpu"), "AutocastCPU")
_library.impl("matmul_out", _matmul_out, "CUDA")
_library.impl("matmul_out", _matmul_out, "CPU")


def _matmul_fake(a: Tensor, b: Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    refuse_forward_mode("matmul")
    check_call(a, b, accuracy)
    return a.new_empty(product_shape(a.shape, b.shape), dtype=result_dtype(common_dtype(a, b), out_dtype))


def _matmul_out_fake(
    a: Tensor, b: Tensor, *, out: Tensor, accuracy: str | None = None, **packed: Tensor | None
) -> None:
    check_call(a, b, accuracy)
    check_out(a, b, out, out.dtype)
    shape = product_shape(a.shape, b.shape)
    torch._check(tuple(out.shape) == shape, lambda: f"out has shape {list(out.shape)}, not {list(shape)}")


register_fake(f"{NAMESPACE}::matmul", _matmul_fake, lib=_library)
register_fake(f"{NAMESPACE}::matmul_out", _matmul_out_fake, lib=_library)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.accuracy = keyword_only_inputs["accuracy"]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    return _gradients(a, b, grad, ctx.needs_input_grad[:2], ctx.accuracy)


def _gradients(
    a: Tensor, b: Tensor, grad: Tensor, needed: tuple[bool, bool], accuracy: str | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that are needed. The values of an operand whose gradient alone is needed do not count."""
    need_a, need_b = needed

    # As matrices: a row for a 1-D a, a column for a 1-D b.
    a2 = a.unsqueeze(0) if a.dim() == 1 else a
    b2 = b.unsqueeze(1) if b.dim() == 1 else b
    grad2 = grad.to(common_dtype(a, b))
    if b.dim() == 1:
        grad2 = grad2.unsqueeze(-1)
    if a.dim() == 1:
        grad2 = grad2.unsqueeze(-2)

    grad_a = grad_b = None
    if need_a:
        grad_a = stored_as(is_by_columns(a), grad2, b2.mT, accuracy).sum_to_size(a2.shape).reshape(a.shape).to(a.dtype)
    if need_b:
        if b2.dim() == 2 and a2.dim() > 2 and _may_flatten(a2) and _may_flatten(grad2):
            # Every matrix of the batch met the same b: one long product sums over them all.
            grad_b = stored_as(is_by_columns(b), as_rows(a2).mT, as_rows(grad2), accuracy).reshape(b.shape)
        else:
            grad_b = stored_as(is_by_columns(b), a2.mT, grad2, accuracy).sum_to_size(b2.shape).reshape(b.shape)
        grad_b = grad_b.to(b.dtype)
    return grad_a, grad_b


def is_by_columns(x: Tensor) -> bool:
    """Whether the gradient of such a matrix is stored by columns, as torch's is: autograd adds it to the matrix it is a
    view of, a weight of which this is the transpose, without a copy then."""
    return x.dim() == 2 and x.stride(0) == 1 and x.stride(1) == x.shape[0]


def stored_as(by_columns: bool, a: Tensor, b: Tensor, accuracy: str | None) -> Tensor:
    """The product of two matrices, stored by columns or by rows."""
    is_matrix = a.dim() == b.dim() == 2
    return product(b.mT, a.mT, accuracy).mT if by_columns and is_matrix else product(a, b, accuracy)


def as_rows(x: Tensor) -> Tensor:
    """All rows of all matrices as those of one. (`flatten` does the same, but not with batched gradients.)"""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _may_flatten(x: Tensor) -> bool:
    """Whether `as_rows` leaves all rows in their processes: a distributed tensor may be split along the first
    of these dimensions only, and evenly."""
    parts = 1
    for processes, placement in zip(*_layout(x), strict=True):
        dim = getattr(placement, "dim", None)  # what is not sharded has none
        if dim == 0:
            parts *= processes
        elif dim is not None and dim < x.dim() - 1:
            return False
    return x.shape[0] % parts == 0


def _layout(x: Any) -> tuple[tuple[int, ...], tuple[object, ...]]:
    """The mesh of a distributed tensor and its placements there; nothing of other tensors."""
    return (x.device_mesh.shape, x.placements) if hasattr(x, "device_mesh") else ((), ())


register_autograd(f"{NAMESPACE}::matmul", _backward, setup_context=_setup_context, lib=_library)


def _matmul_vmap(
    info: Any, in_dims: tuple[int | None, int | None], a: Tensor, b: Tensor, **options: Any
) -> tuple[Tensor, int]:
    # torch is still inside of the transform here, and it is the dispatcher that goes on to the next one.
    return as_one_batch(partial(matmul, **options), in_dims, a, b)


register_vmap(f"{NAMESPACE}::matmul", _matmul_vmap, lib=_library)


class _Transformed(torch.autograd.Function):
    """The product under torch.func's transforms and forward-mode AD, which do not see what register_autograd did."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, accuracy: str | None, out_dtype: torch.dtype | None) -> Tensor:
        return matmul(a, b, accuracy=accuracy, out_dtype=out_dtype)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, accuracy, _ = inputs
        _setup_context(ctx, (a, b), {"accuracy": accuracy}, output)
        ctx.save_for_forward(a, b)
        ctx.out_dtype = output.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        return (*_backward(ctx, grad), None, None)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor | None, b_tangent: Tensor | None, *_: None) -> Tensor | None:
        a, b = ctx.saved_tensors
        parts = []
        if a_tangent is not None:
            parts.append(product(a_tangent, b, ctx.accuracy, ctx.out_dtype))
        if b_tangent is not None:
            parts.append(product(a, b_tangent, ctx.accuracy, ctx.out_dtype))
        return sum(parts[1:], parts[0]) if parts else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None, None], a: Tensor, b: Tensor, *options: Any
    ) -> tuple[Tensor, int]:
        return as_one_batch(lambda x, y: product(x, y, *options), in_dims[:2], a, b)


class _PackedProduct(torch.autograd.Function):
    """A product with a packed operand, which is a constant, for the gradient of the other one."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, packed: PackedPair, accuracy: str | None, out_dtype: torch.dtype | None
    ) -> Tensor:
        ctx.save_for_backward(b if ctx.needs_input_grad[0] else a)
        ctx.shape = (a if ctx.needs_input_grad[0] else b).shape
        ctx.accuracy = accuracy
        return multiply(a, b, numerics(accuracy, a.dtype), out_dtype, None, packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (constant,) = ctx.saved_tensors
        other = constant.new_empty(()).expand(ctx.shape)
        a, b = (other, constant) if ctx.needs_input_grad[0] else (constant, other)
        return (*_gradients(a, b, grad, ctx.needs_input_grad[:2], ctx.accuracy), None, None, None)
