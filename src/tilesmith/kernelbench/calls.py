"""What forward may not call, though no operation of torch's shows it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from tilesmith.kernelbench.rules import RefusalError

# These change what gradients are, of which an expression knows only that they flow or do not.
_REFUSED: Final = {
    torch.Tensor.detach_: "Tensor.detach_",
    torch.Tensor.requires_grad_: "Tensor.requires_grad_",
    torch.Tensor.requires_grad.__set__: "an assignment to requires_grad",  # type: ignore[attr-defined]
    torch.Tensor.data.__set__: "an assignment to data",  # type: ignore[attr-defined]
    torch.Tensor.grad.__set__: "an assignment to grad",  # type: ignore[union-attr]
    torch.Tensor.register_hook: "Tensor.register_hook",
    torch.Tensor.register_post_accumulate_grad_hook: "Tensor.register_post_accumulate_grad_hook",
    torch.Tensor.backward: "Tensor.backward",
    torch.autograd.grad: "torch.autograd.grad",
    torch.autograd.backward: "torch.autograd.backward",
}


class _Refusals(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if name := _REFUSED.get(func):
            raise RefusalError(name)
        if (kwargs or {}).get("out") is not None:
            raise RefusalError(f"{func.__name__} with out=, which changes a tensor in place,")
        return func(*args, **(kwargs or {}))


@contextmanager
def refusals() -> Iterator[None]:
    """Here those calls end in a RefusalError."""
    with (
        mock.patch.object(torch.autocast, "__enter__", _refuse_autocast),
        mock.patch.object(torch.autograd.Function, "apply", _refuse_function),
        _Refusals(),
    ):
        yield


def _refuse_autocast(_: object) -> None:
    raise RefusalError("torch.autocast, which changes types on some devices only,")


def _refuse_function(*_: object) -> None:
    raise RefusalError("torch.autograd.Function, which has a gradient of its own,")
