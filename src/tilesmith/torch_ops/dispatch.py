"""What PyTorch's dispatcher has to do for a call, if anything."""

import torch
from torch.autograd import forward_ad

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

# Bound once: is_plain is on the way of every call.
_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch._C._is_any_autocast_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


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


def autocast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What torch's own autocast makes of an operand: it casts floating-point tensors, but float64 stays."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
