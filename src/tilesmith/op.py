"""The torch.library operators, and everything PyTorch wants to know about them.

`tilesmith::matmul` is `torch.matmul` with two more arguments; `tilesmith::matmul_out` writes
into a given tensor. They are defined by `Library.define/impl`: `custom_op` costs 8 us more a call.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.library import Library, register_autograd, register_fake, register_vmap

from tilesmith.accuracy import may_mix
from tilesmith.emulator import active
from tilesmith.prepared import PackedPair, multiply
from tilesmith.problem import check_operands, check_out, common_dtype, is_mixed, product_shape, result_dtype

_library = Library("tilesmith", "DEF")
_library.define(
    "matmul(Tensor a, Tensor b, *, str? accuracy=None, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "matmul_out(Tensor a, Tensor b, *, Tensor(a!) out, str? accuracy=None, "
    "Tensor? a_packed=None, Tensor? b_packed=None) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)

matmul = torch.ops.tilesmith.matmul.default
matmul_out = torch.ops.tilesmith.matmul_out.default

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

# Bound once: is_plain is on the way of every call.
_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch._C._is_any_autocast_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


def product(
    a: torch.Tensor, b: torch.Tensor, accuracy: str | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The product by way of PyTorch's dispatcher, and of transforms and forward-mode AD where they are active."""
    if is_transformed():
        return _Transformed.apply(a, b, accuracy, out_dtype)  # type: ignore[no-any-return,no-untyped-call]
    return matmul(a, b, accuracy=accuracy, out_dtype=out_dtype)  # type: ignore[no-any-return]


def packed_product(
    a: torch.Tensor, b: torch.Tensor, packed: PackedPair, accuracy: str | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """The product of operands of which `pack` has made what `packed` holds. Autocast, modes and transforms have no use
    for that: they get the tensors."""
    if is_plain(a, b):
        return multiply(a, b, accuracy, out_dtype, None, packed)
    with torch.no_grad():
        only_differentiated = is_plain(a, b)
    if only_differentiated:
        return _PackedProduct.apply(a, b, packed, accuracy, out_dtype)  # type: ignore[no-any-return,no-untyped-call]
    return product(a, b, accuracy, out_dtype)


def is_plain(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a call has nothing for PyTorch's dispatcher to do: two ordinary CUDA tensors, no
    gradient, no autocast, no mode, no transform. It may then go straight to the launch."""
    return (
        type(a) in _PLAIN_TYPES
        and type(b) in _PLAIN_TYPES
        and a.is_cuda
        and b.is_cuda
        and a.layout is torch.strided
        and b.layout is torch.strided
        and not a.is_neg()
        and not b.is_neg()
        and not (_grad_enabled() and (a.requires_grad or b.requires_grad))
        and not _autocast_enabled()
        and _transform() is None
        and not _dispatch_modes()
        and not _function_modes()
        and forward_ad._current_level < 0
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode AD is active, outside of torch.compile."""
    return not torch.compiler.is_compiling() and (_transform() is not None or forward_ad._current_level >= 0)


def refuse_forward_mode(operator: str) -> None:
    """Raises where a tangent would be lost without a word: PyTorch has no way to register a forward derivative with an
    operator. The function of the same name has one, and then runs operators with forward mode switched off."""
    if forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        raise NotImplementedError(
            f"torch.ops.tilesmith.{operator} cannot be differentiated in forward mode; call tilesmith.{operator}, "
            "outside of torch.compile"
        )


def _matmul_cuda(
    a: torch.Tensor, b: torch.Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    refuse_forward_mode("matmul")
    return multiply(a, b, accuracy, out_dtype)


def _matmul_out_cuda(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    accuracy: str | None = None,
    a_packed: torch.Tensor | None = None,
    b_packed: torch.Tensor | None = None,
) -> None:
    packed = None if a_packed is None and b_packed is None else (a_packed, b_packed)
    if _may_overlap(out, a) or _may_overlap(out, b):
        out.copy_(multiply(a, b, accuracy, out.dtype, None, packed))
    else:
        multiply(a, b, accuracy, out.dtype, out, packed)


def _matmul_cpu(
    a: torch.Tensor, b: torch.Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    refuse_forward_mode("matmul")
    emulation = active()
    if emulation is not None:
        return emulation.multiply(a, b, accuracy, out_dtype)
    if out_dtype is None and not (may_mix(accuracy) and is_mixed(a.dtype, b.dtype)):
        return torch.matmul(a, b)
    return _wider_cpu_product(a, b, accuracy, out_dtype)


def _matmul_out_cpu(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    accuracy: str | None = None,
    a_packed: None = None,
    b_packed: None = None,
) -> None:
    emulation = active()
    if emulation is None:
        out.copy_(_wider_cpu_product(a, b, accuracy, out.dtype))
    elif _may_overlap(out, a) or _may_overlap(out, b):
        out.copy_(emulation.multiply(a, b, accuracy, out.dtype))
    else:
        emulation.multiply(a, b, accuracy, out.dtype, out)


def _wider_cpu_product(
    a: torch.Tensor, b: torch.Tensor, accuracy: str | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    check_operands(a, b, may_mix=may_mix(accuracy))
    dtype = result_dtype(common_dtype(a, b), out_dtype)
    return torch.matmul(a.to(dtype), b.to(dtype))


def _may_overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the memory from x's first element to its last touches y's."""

    def span(t: torch.Tensor) -> tuple[int, int]:
        steps = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (steps + 1) * t.itemsize

    if x.numel() == 0 or y.numel() == 0:
        return False
    (x_first, x_end), (y_first, y_end) = span(x), span(y)
    return x_first < y_end and y_first < x_end


def _matmul_autocast(device_type: str) -> Any:
    key = getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}")

    def run(
        a: torch.Tensor, b: torch.Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            dtype = torch.get_autocast_dtype(device_type)
            return matmul(autocast(a, dtype), autocast(b, dtype), accuracy=accuracy, out_dtype=out_dtype)  # type: ignore[no-any-return]

    return run


def autocast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What torch's own autocast makes of an operand: it casts floating-point tensors, but float64 stays."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


_library.impl("matmul", _matmul_cuda, "CUDA")
_library.impl("matmul", _matmul_cpu, "CPU")
_library.impl("matmul", _matmul_autocast("cuda"), "AutocastCUDA")
_library.impl("matmul", _matmul_autocast("cpu"), "AutocastCPU")
_library.impl("matmul_out", _matmul_out_cuda, "CUDA")
_library.impl("matmul_out", _matmul_out_cpu, "CPU")


def _matmul_fake(
    a: torch.Tensor, b: torch.Tensor, *, accuracy: str | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    refuse_forward_mode("matmul")
    check_operands(a, b, may_mix=may_mix(accuracy))
    return a.new_empty(product_shape(a.shape, b.shape), dtype=result_dtype(common_dtype(a, b), out_dtype))


def _matmul_out_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor,
    accuracy: str | None = None,
    a_packed: torch.Tensor | None = None,
    b_packed: torch.Tensor | None = None,
) -> None:
    check_operands(a, b, may_mix=may_mix(accuracy))
    check_out(a, b, out, out.dtype)
    shape = product_shape(a.shape, b.shape)
    torch._check(tuple(out.shape) == shape, lambda: f"out has shape {list(out.shape)}, not {list(shape)}")


register_fake("tilesmith::matmul", _matmul_fake, lib=_library)
register_fake("tilesmith::matmul_out", _matmul_out_fake, lib=_library)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.accuracy = keyword_only_inputs["accuracy"]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    a, b = ctx.saved_tensors
    return _gradients(a, b, grad, ctx.needs_input_grad[:2], ctx.accuracy)


def _gradients(
    a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, needed: tuple[bool, bool], accuracy: str | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The values of an operand whose gradient alone is needed do not count."""
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
        grad_a = product(grad2, b2.mT, accuracy).sum_to_size(a2.shape).reshape(a.shape)
    if need_b:
        if b2.dim() == 2 and a2.dim() > 2 and _may_flatten(a2) and _may_flatten(grad2):
            # Every matrix of the batch met the same b: one long product sums over them all.
            grad_b = product(a2.flatten(0, -2).mT, grad2.flatten(0, -2), accuracy).reshape(b.shape)
        else:
            grad_b = product(a2.mT, grad2, accuracy).sum_to_size(b2.shape).reshape(b.shape)
    return (
        None if grad_a is None else grad_a.to(a.dtype),
        None if grad_b is None else grad_b.to(b.dtype),
    )


def _may_flatten(x: torch.Tensor) -> bool:
    """Whether `x.flatten(0, -2)` leaves all rows in their processes: a distributed tensor may be split along the first
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


register_autograd("tilesmith::matmul", _backward, setup_context=_setup_context, lib=_library)


def _mapped(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    in_dims: tuple[int | None, int | None],
    a: torch.Tensor,
    b: torch.Tensor,
) -> tuple[torch.Tensor, int]:
    """One product for all that vmap maps over."""
    a_dim, b_dim = in_dims
    a_rank = a.dim() - (a_dim is not None)
    b_rank = b.dim() - (b_dim is not None)
    if a_rank == 0 or b_rank == 0:
        product_shape((1,) * a_rank, (1,) * b_rank)  # raises torch's error

    # The mapped dimension becomes the outermost of the batch, so ranks must agree: 1-D operands
    # become matrices, and the other batch dimensions are filled up with ones.
    rank = max(a_rank, b_rank, 2)

    def as_batch(x: torch.Tensor, dim: int | None, x_rank: int, vector_at: int) -> torch.Tensor:
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        if x_rank == 1:
            x = x.unsqueeze(vector_at)
        shape = x.shape
        return x.reshape(shape[0], *(1,) * (rank - max(x_rank, 2)), *shape[1:])

    result = multiply(as_batch(a, a_dim, a_rank, 1), as_batch(b, b_dim, b_rank, 2))
    if b_rank == 1:
        result = result.squeeze(-1)
    if a_rank == 1:
        result = result.squeeze(-1 if b_rank == 1 else -2)
    return result, 0


def _matmul_vmap(
    info: Any,
    in_dims: tuple[int | None, int | None],
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, int]:
    # torch is still inside of the transform here, and it is the dispatcher that goes on to the next one.
    return _mapped(partial(matmul, accuracy=accuracy, out_dtype=out_dtype), in_dims, a, b)


register_vmap("tilesmith::matmul", _matmul_vmap, lib=_library)


class _Transformed(torch.autograd.Function):
    """The product under torch.func's transforms and forward-mode AD, which do not see what register_autograd did."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, accuracy: str | None, out_dtype: torch.dtype | None) -> torch.Tensor:
        return matmul(a, b, accuracy=accuracy, out_dtype=out_dtype)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, accuracy, _ = inputs
        _setup_context(ctx, (a, b), {"accuracy": accuracy}, output)
        ctx.save_for_forward(a, b)
        ctx.out_dtype = output.dtype

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        return (*_backward(ctx, grad), None, None)

    @staticmethod
    def jvp(ctx: Any, a_tangent: torch.Tensor | None, b_tangent: torch.Tensor | None, *_: None) -> torch.Tensor | None:
        a, b = ctx.saved_tensors
        parts = []
        if a_tangent is not None:
            parts.append(product(a_tangent, b, ctx.accuracy, ctx.out_dtype))
        if b_tangent is not None:
            parts.append(product(a, b_tangent, ctx.accuracy, ctx.out_dtype))
        return sum(parts[1:], parts[0]) if parts else None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, int | None, None, None],
        a: torch.Tensor,
        b: torch.Tensor,
        accuracy: str | None,
        out_dtype: torch.dtype | None,
    ) -> tuple[torch.Tensor, int]:
        return _mapped(partial(product, accuracy=accuracy, out_dtype=out_dtype), in_dims[:2], a, b)


class _PackedProduct(torch.autograd.Function):
    """A product with a packed operand, which is a constant, for the gradient of the other one."""

    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        packed: PackedPair,
        accuracy: str | None,
        out_dtype: torch.dtype | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(b if ctx.needs_input_grad[0] else a)
        ctx.shape = (a if ctx.needs_input_grad[0] else b).shape
        ctx.accuracy = accuracy
        return multiply(a, b, accuracy, out_dtype, None, packed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        (constant,) = ctx.saved_tensors
        other = constant.new_empty(()).expand(ctx.shape)
        a, b = (other, constant) if ctx.needs_input_grad[0] else (constant, other)
        return (*_gradients(a, b, grad, ctx.needs_input_grad[:2], ctx.accuracy), None, None, None)
