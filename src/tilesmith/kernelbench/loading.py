"""From a problem's text to its model and inputs, without memory for either.

Everything runs with tensors on torch's meta device, which have shapes, types and strides and no elements: inputs
of many gigabytes cost nothing, and no GPU is asked for.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tilesmith.kernelbench.expression import Input, Scalar
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.stand_ins import stand_in


class UnsupportedError(ProblemError):
    """A problem computes something for which there is no expression. The message names it and its line."""


class ForwardError(ProblemError):
    """forward fails. The message says how, and in which line."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on the meta device, and what it is called with."""

    model: nn.Module
    inputs: tuple[Input | Scalar, ...]
    variables: Mapping[str, Any]  # of the file's module


class _StaysOnMeta(TorchFunctionMode):
    """Ignores every request for a device, pinned memory or a generator, and calls what stands for other functions."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if (operator := stand_in(func)) is not None:
            return operator(*args, **named)
        if func in _MOVES:
            return args[0]
        if func is Tensor.to:
            return _with_dtype(args[0], [*args[1:], *named.values()])
        if named.get("device") is not None:
            named["device"] = "meta"
        for name in ("generator", "pin_memory"):
            named.pop(name, None)
        return func(*args, **named)


MODULE: Final = "__problem__"  # the name of the last file that was loaded
_MOVES: Final = (Tensor.cuda, Tensor.cpu, Tensor.pin_memory)


def _with_dtype(x: Tensor, arguments: list[Any]) -> Tensor:
    """What `to` does besides moving."""
    wanted = [y.dtype if isinstance(y, Tensor) else y for y in arguments]
    return next((x.to(y) for y in wanted if isinstance(y, torch.dtype)), x)


@contextmanager
def on_meta() -> Iterator[None]:
    """Tensors made here have no memory, whatever device is asked for."""
    with torch.device("meta"), _StaysOnMeta():
        yield


def load(problem: ProblemFile) -> Loaded:
    """The model and inputs of a problem. This runs the file's code in this process."""
    module = sys.modules[MODULE] = ModuleType(MODULE)  # dataclasses look for their module there
    module.__file__ = problem.name
    space = module.__dict__
    code = compile(problem.text, problem.name, "exec", dont_inherit=True)
    with on_meta():
        _user_code(problem, f"importing {problem.name}", lambda: exec(code, space))
        cls = space.get("Model")
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise ProblemError(f"{problem.name}: Model is not a class of torch.nn.Module")
        if cls.forward is nn.Module.forward:
            raise ProblemError(f"{problem.name}: Model has no forward")
        init_inputs = _values(problem, space, "get_init_inputs")
        values = _values(problem, space, "get_inputs")
    model = _user_code(problem, "Model(*get_init_inputs())", lambda: _made(lambda: cls(*init_inputs)))
    model.to("meta")  # what was made of numpy arrays, for example
    return Loaded(model, _arguments(problem, model, values), space)


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    """The model; with memory if its constructor needs the elements of a tensor."""
    try:
        with on_meta():
            return make()
    except RuntimeError as error:
        if "meta tensor" not in str(error):
            raise
    return make()


def _values(problem: ProblemFile, space: dict[str, Any], name: str) -> list[Any]:
    function = space.get(name)
    if not callable(function):
        raise ProblemError(f"{problem.name}: {name} is not a function")
    values = _user_code(problem, f"{name}()", function)
    if not isinstance(values, list | tuple):
        raise ProblemError(f"{problem.name}: {name}() returns {type(values).__name__}, not a list")
    return list(values)


def _arguments(problem: ProblemFile, model: nn.Module, values: list[Any]) -> tuple[Input | Scalar, ...]:
    """What forward is called with, by the names of its parameters; *rest becomes rest_0, rest_1 and so on."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*values)
    except TypeError as error:
        raise ProblemError(f"{problem.name}: get_inputs() does not fit forward{signature}: {error}") from None
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(len(values) - len(names))]
        else:
            names.append(parameter.name)
    named = zip(names, values, strict=False)  # those with defaults may be left out
    return tuple(_argument(problem, name, i, value) for i, (name, value) in enumerate(named))


def _argument(problem: ProblemFile, name: str, index: int, value: object) -> Input | Scalar:
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return Input(name, index, tuple(value.shape), value.dtype, tuple(value.stride()))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Scalar(value, name, index)
    kind = f"a tensor of layout {value.layout}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UnsupportedError(f"{problem.name}: argument {name} of forward is {kind}, not a dense tensor or a number")


def _user_code(problem: ProblemFile, what: str, function: Callable[[], Any]) -> Any:
    """The function's value; its errors, even an exit, as ours."""
    try:
        return function()
    except (ProblemError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ProblemError(f"{what} fails: {describe(problem, error)}") from None


def describe(problem: ProblemFile, error: BaseException) -> str:
    """An error of the user's code in one line, with the innermost line of the file that it came through."""
    name, text = type(error).__name__, str(error).strip()
    message = f"{name}: {text.splitlines()[0]}" if text else name
    return f"{message}{where(problem, error.__traceback__)}"


def where(problem: ProblemFile, trace: TracebackType | None = None) -> str:
    """ " at FILE:LINE: CODE" for the innermost line of the problem in a traceback, or in the running stack."""
    frames = traceback.walk_tb(trace) if trace else reversed(list(traceback.walk_stack(sys._getframe(1))))
    numbers = [number for frame, number in frames if frame.f_code.co_filename == problem.name]
    return place(problem, numbers[-1]) if numbers else ""


def place(problem: ProblemFile, number: int) -> str:
    """ " at FILE:LINE: CODE"."""
    return f" at {problem.name}:{number}: {problem.line(number)}"
