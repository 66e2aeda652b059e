"""What forward calls, and what it may not call, though no operation of torch's shows it."""

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.rules import RefusalError

# These change what gradients are, of which an expression knows only that they flow or do not.
_REFUSED: Final = {
    Tensor.detach_: "Tensor.detach_",
    Tensor.requires_grad_: "Tensor.requires_grad_",
    Tensor.requires_grad.__set__: "an assignment to requires_grad",  # type: ignore[attr-defined]
    Tensor.data.__set__: "an assignment to data",  # type: ignore[attr-defined]
    Tensor.grad.__set__: "an assignment to grad",  # type: ignore[union-attr]
    Tensor.register_hook: "Tensor.register_hook",
    Tensor.register_post_accumulate_grad_hook: "Tensor.register_post_accumulate_grad_hook",
    Tensor.backward: "Tensor.backward",
    torch.autograd.grad: "torch.autograd.grad",
    torch.autograd.backward: "torch.autograd.backward",
}


_PARTS: Final = ("__getitem__", "narrow", "split", "chunk", "select")
# Of these the numbers among the arguments are sizes.
_SIZED: Final = frozenset(
    (*_PARTS, "view", "reshape", "expand", "expand_as", "flatten", "unflatten", "broadcast_to", "as_strided")
)


@dataclass(frozen=True, slots=True)
class Made:
    """A call of torch that gave tensors: what was called, with which of the earlier tensors and with what else."""

    name: str
    arguments: Any
    line: int = field(compare=False)  # of the problem; 0 if it is none of its own


class Calls(TorchFunctionMode):
    """The way that forward takes: what it calls of torch, in order, as the file spells it. Some calls it may not make;
    those end in a RefusalError."""

    def __init__(self, problem: ProblemFile) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.failed: Made | None = None  # the last one that ended in an error
        self._file = problem.name
        self._places: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that their ids are
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for owner, name, refuse in (
            (torch.autocast, "__enter__", _refuse_autocast),
            (torch.autograd.Function, "apply", _refuse_function),
        ):
            self._patches.enter_context(mock.patch.object(owner, name, refuse))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    @property
    def begun(self) -> list[Made]:
        """The calls up to one that failed."""
        return [*self.made, *([self.failed] if self.failed else [])]

    @property
    def is_part(self) -> bool:
        """Whether the call that failed was to take a part of a tensor."""
        return self.failed is not None and self.failed.name in _PARTS

    def begin_with(self, leaves: Iterable[Tensor]) -> None:
        for tensor in leaves:
            self._number(tensor)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if name := _REFUSED.get(func):
            raise RefusalError(name)
        if kwargs.get("out") is not None:
            raise RefusalError(f"{func.__name__} with out=, which changes a tensor in place,")
        own = getattr(func, "__self__", None)  # x.T is a call of __get__
        name = own.__name__ if func.__name__ == "__get__" and own is not None else func.__name__
        given = self._plain([args, kwargs])
        call = Made(name, _without_numbers(given) if name in _SIZED else given, self._line())
        try:
            result = func(*args, **kwargs)
        except Exception:
            self.failed = call
            raise
        tensors = [x for x in (result if isinstance(result, list | tuple) else [result]) if isinstance(x, Tensor)]
        if tensors:
            self.made.append(call)
            for tensor in tensors:
                self._number(tensor)
        return result

    def _number(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._places[id(tensor)] = len(self._kept)

    def _plain(self, value: Any) -> Any:
        """Arguments as values that can be compared."""
        match value:
            case Tensor():
                return ("tensor", self._places.get(id(value), 0))
            case bool() | int() | float():
                return _Number(repr(value))
            case list() | tuple():
                return tuple(self._plain(x) for x in value)
            case dict():
                return tuple((name, self._plain(x)) for name, x in sorted(value.items()))
            case slice():
                return (self._plain(value.start), self._plain(value.stop), self._plain(value.step))
            case _:
                return repr(value) if isinstance(value, str | torch.dtype | torch.device | None) else type(value)

    def _line(self) -> int:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back  # type: ignore[assignment]  # None after the last
        return 0 if frame is None else frame.f_lineno


class _Number(str):
    """How a number is written: it has no equal but itself, also if it refuses to be compared."""


def _without_numbers(value: Any) -> Any:
    if isinstance(value, tuple):
        found = tuple(_without_numbers(x) for x in value)
        return tuple(x for x in found if x is not None)
    return None if isinstance(value, _Number) else value


def _refuse_autocast(_: object) -> None:
    raise RefusalError("torch.autocast, which changes types on some devices only,")


def _refuse_function(*_: object) -> None:
    raise RefusalError("torch.autograd.Function, which has a gradient of its own,")
