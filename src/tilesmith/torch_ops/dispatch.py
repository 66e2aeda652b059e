"""What PyTorch's dispatcher has to do for a call, if anything."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilesmith.core.package import NAMESPACE

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})

# Bound once: is_plain is on the way of every call.
_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch._C._is_any_autocast_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


def is_plain(a: Tensor, b: Tensor) -> bool:
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
            f"torch.ops.{NAMESPACE}.{operator} cannot be differentiated in forward mode; call tilesmith.{operator}, "
            "outside of torch.compile"
        )


def autocast_kernel(operator: Callable[..., Tensor], device_type: str) -> Callable[..., Tensor]:
    """An operator as torch's own autocast would call it: with its floating-point operands cast, but for float64."""
    key = getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}")

    def run(*tensors: Tensor | None, **options: Any) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            dtype = torch.get_autocast_dtype(device_type)
            dtypes = (dtype, dtype, dtype, options.get("out_dtype") or dtype)  # the fourth is added to the result
            return operator(*map(_cast, tensors, dtypes), **options)

    return run


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x if x is None or not x.is_floating_point() or x.dtype == torch.float64 else x.to(dtype)
