"""From a model to the expression that its forward computes.

forward runs on tensors without memory, and every operation that torch dispatches is looked up in the rules, after
torch has brought matmul, einsum, Linear and all other spellings to a few. What has no rule is refused by name.
With numbers among the arguments it runs twice, with two made-up values for each: the expressions must be equal,
or a number was used for more than a factor. All arguments and parameters need gradients while it runs, so that torch
itself says where none flow: through what is detached, in whatever way, and what is computed without gradients.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.kernelbench import simplify
from tilesmith.kernelbench.calls import Calls
from tilesmith.kernelbench.expression import Attribute, Detached, Expression, Input, Number, Scalar, nodes
from tilesmith.kernelbench.loading import ForwardError, Loaded, UnsupportedError, describe, load, on_meta, where
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.rules import IN_PLACE, RULES, Call, Diagonal, RefusalError, Stale, Value, plain
from tilesmith.kernelbench.show import show

LARGEST: Final = 500  # distinct nodes of an expression
_MAX_ARGUMENTS: Final = 1000  # of forward

_aten: Final = torch.ops.aten


def trace(problem: ProblemFile, loaded: Loaded | None = None) -> Expression:
    """The expression of a problem's forward. This runs the file's code in this process.

    >>> from tilesmith.kernelbench.problem_file import shipped
    >>> [show(trace(problem)) for problem in shipped()[13:16]]
    ['triu(A @ B)', 'tril(A @ B)', 'A.T @ B']
    """
    loaded = loaded or load(problem)
    numbers = [x.name for x in loaded.inputs if isinstance(x, Scalar)]
    try:
        found = run(problem, loaded, Calls(problem))
        if numbers and run(problem, loaded, Calls(problem), turn=1) is not found:
            raise UnsupportedError(f"{problem.name}: forward uses {', '.join(numbers)} for more than a factor")
    except ForwardError as error:
        if numbers:
            changed = f"forward fails with another value of {', '.join(numbers)}"
            raise UnsupportedError(f"{changed}: {error}") from None
        raise ProblemError(f"forward fails: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """A number that the constructor has left in an attribute."""

    module: nn.Module
    attribute: str
    scalar: Scalar


def with_settings(problem: ProblemFile, loaded: Loaded, found: Expression) -> Expression:
    """An expression, with the names of those attributes that are factors in it and nothing else: constructors may
    be given other numbers than those of get_init_inputs."""
    constants = {node.value for node in nodes(found) if isinstance(node, Scalar) and not node.name}
    constants.add(1)  # which is left out as a factor
    kept: list[Setting] = []
    for path, module in loaded.model.named_modules():
        for name, value in vars(module).items():
            parts = [*filter(None, path.split(".")), name]
            if type(value) not in (int, float) or value not in constants or not all(x.isidentifier() for x in parts):
                continue
            setting = Setting(module, name, Scalar(value, ".".join(["self", *parts])))
            try:
                first, second = (
                    run(problem, loaded, Calls(problem), turn=turn, settings=[*kept, setting]) for turn in (0, 1)
                )
            except ProblemError:  # it decides something, or is a size
                continue
            if first is second and setting.scalar in nodes(first):
                kept, found = [*kept, setting], first
    return found


def run(
    problem: ProblemFile,
    loaded: Loaded,
    calls: Calls,
    inputs: Sequence[Input | Scalar] = (),
    *,
    turn: int = 0,
    gradients: bool = True,
    settings: Sequence[Setting] = (),
) -> Expression:
    """What one call of forward computes, with inputs that are those of the problem if no others are given. `calls` has
    then seen what it called, also where that ended in an error. `settings` keep their names in the expression."""
    recorder = _Recorder(problem)
    arguments = [recorder.argument(x, turn) for x in inputs or loaded.inputs]
    try:
        with (
            _all_trained(loaded.model),
            recorder.settings(settings, turn),
            on_meta(),
            calls,
            torch.set_grad_enabled(gradients),
            recorder,
        ):
            for path, x in itertools.chain(loaded.model.named_parameters(), loaded.model.named_buffers()):
                recorder.begin_with(x, Attribute(path, tuple(x.shape), x.dtype))
            calls.begin_with(recorder.leaves)
            result = loaded.model(*arguments)
    except (ProblemError, KeyboardInterrupt):
        raise
    except RefusalError as error:
        raise UnsupportedError(error.describe(where(problem, error.__traceback__))) from None
    except NotImplementedError as error:  # torch's, for what needs the elements of a tensor
        raise UnsupportedError(f"forward fails without data: {describe(problem, error)}") from None
    except BaseException as error:
        raise ForwardError(describe(problem, error)) from None
    return recorder.outcome(result)


@contextmanager
def _all_trained(model: nn.Module) -> Iterator[None]:
    """All parameters need gradients here, also those that the constructor has frozen, and may be trained later."""
    frozen = [x for x in model.parameters() if not x.requires_grad and x.is_floating_point()]
    for x in frozen:
        x.requires_grad_(True)
    try:
        yield
    finally:
        for x in frozen:
            x.requires_grad_(False)


class _Given(torch.autograd.Function):
    """An argument that needs a gradient and is no leaf. To change a leaf is an error, but to change it is what is to be
    refused by name."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, x: Input) -> Tensor:
        return torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")


class _Recorder(TorchDispatchMode):
    """Knows the expression of every tensor that it has seen."""

    def __init__(self, problem: ProblemFile) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._problem = problem
        self._known: dict[int, tuple[Tensor, Value]] = {}  # by id; the tensor is kept, so that the id is
        self._leaves: list[tuple[Tensor, Input | Attribute]] = []
        self._numbers: dict[Number, Scalar] = {}
        self._has_gradient: dict[Expression, bool] = {}

    def argument(self, x: Input | Scalar, turn: int) -> Tensor | Number:
        """What forward is called with."""
        if isinstance(x, Scalar):
            value = _made_up(x, turn)
            self._numbers[value] = x
            return _Float(value) if isinstance(value, float) else _Int(value)
        leaf = torch.empty((), device="meta", requires_grad=x.dtype.is_floating_point)
        tensor: Tensor = _Given.apply(leaf, x)  # type: ignore[no-untyped-call]
        self.begin_with(tensor, x)
        return tensor

    @contextmanager
    def settings(self, settings: Sequence[Setting], turn: int) -> Iterator[None]:
        """Attributes have made-up values here."""
        for i, x in enumerate(settings):
            value = _made_up(replace(x.scalar, index=_MAX_ARGUMENTS + i), turn)
            self._numbers[value] = x.scalar
            setattr(x.module, x.attribute, _Float(value) if isinstance(value, float) else _Int(value))
        try:
            yield
        finally:
            for x in settings:
                setattr(x.module, x.attribute, x.scalar.value)

    @property
    def leaves(self) -> list[Tensor]:
        """The arguments, parameters and buffers, in order."""
        return [tensor for tensor, _ in self._leaves]

    def begin_with(self, tensor: Tensor, leaf: Input | Attribute) -> None:
        self._leaves.append((tensor, leaf))
        self._remember(tensor, leaf)
        self._has_gradient[leaf] = tensor.requires_grad

    def outcome(self, result: object) -> Expression:
        """The expression of what forward has returned."""
        name = self._problem.name
        if isinstance(result, list | tuple | dict):
            many = f"{len(result)} values in a {type(result).__name__}"
            raise UnsupportedError(f"{name}: forward returns {many}; supported is one tensor")
        if not isinstance(result, Tensor):
            raise UnsupportedError(f"{name}: forward returns a {type(result).__name__}; supported is one tensor")
        try:
            return plain(self._value(result), "the result")
        except RefusalError as error:
            raise UnsupportedError(f"{name}: forward returns {error.describe('')}") from None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        try:
            rule = RULES.get(packet) or IN_PLACE.get(packet)
            if rule is None or func._overloadname == "out":
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is NotImplemented:
                    raise RefusalError(f"{packet}{_reason(func, args)}")
                return result
            result = func(*args, **kwargs)
            value = rule(Call(str(packet), _by_name(func, args, kwargs), result, self._value, self._numbers))
            if not isinstance(value, Diagonal):
                self._check(value, result, str(packet))
            if func._schema.is_mutable:
                if args[0].requires_grad and not torch.is_grad_enabled():
                    raise RefusalError(f"{packet}, which changes a tensor without its gradient,")
                self._changed(result, packet in IN_PLACE, str(packet))
        except RefusalError as error:
            raise UnsupportedError(error.describe(where(self._problem) or f" in {self._problem.name}")) from None
        self._remember(result, value)
        return result

    def _remember(self, tensor: Tensor, value: Value) -> None:
        self._known[id(tensor)] = (tensor, value)

    def _value(self, tensor: Tensor) -> Value:
        known = self._known.get(id(tensor))
        if known is None:
            raise RefusalError("a tensor that is no argument of forward, parameter or buffer")
        value = known[1]
        if not tensor.requires_grad and not isinstance(value, Stale):
            value = self._without_gradient(value)
        return value

    def _without_gradient(self, value: Expression | Diagonal) -> Value:
        """A value that torch computes no gradient of, though it may depend on what has one."""
        if isinstance(value, Diagonal):
            return Diagonal(self._detached(value.vector))
        return self._detached(value)

    def _detached(self, x: Expression) -> Expression:
        for node in nodes(x):
            if node not in self._has_gradient:
                flows = not isinstance(node, Detached) and any(self._has_gradient[child] for child in node.children)
                self._has_gradient[node] = flows
        return simplify.detached(x) if self._has_gradient[x] else x

    def _check(self, value: Expression, result: Tensor, what: str) -> None:
        if len(nodes(value)) > LARGEST:
            raise RefusalError(f"{what}, after too many operations,")
        if (value.shape, value.dtype) != (tuple(result.shape), result.dtype):
            raise RefusalError(f"{what} to {result.dtype}")

    def _changed(self, result: Tensor, elements: bool, what: str) -> None:
        """Refuse changes of arguments and parameters, and forget what shares the elements of a changed tensor."""
        memory = result.untyped_storage()._cdata
        for tensor, leaf in self._leaves:
            if tensor is result or (elements and tensor.untyped_storage()._cdata == memory):
                raise RefusalError(f"{what}, which changes {show(leaf)} in place,")
        for tensor, _ in list(self._known.values()) if elements else ():
            if tensor.untyped_storage()._cdata == memory:
                self._remember(tensor, Stale())


def _by_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation, with defaults."""
    parameters = func._schema.arguments
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}
    return defaults | dict(zip((parameter.name for parameter in parameters), args, strict=False)) | dict(kwargs)


def _reason(func: Any, args: tuple[Any, ...]) -> str:
    """What is to be said of an operation besides its name."""
    if func is _aten._local_scalar_dense.default:
        return ", which reads an element of a tensor,"
    if func._schema.is_mutable:
        return ", which changes a tensor in place,"
    flat = [y for x in args for y in (x if isinstance(x, list | tuple) else [x])]
    if not any(isinstance(x, Tensor) for x in flat):
        return ", which makes a tensor,"
    return ""


class _Undecided:
    """A number that cannot decide anything: its comparison would be lost in the expression."""

    def _refuse(self, *_: object) -> bool:
        raise RefusalError("a number among the arguments that decides what forward computes")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = _refuse


class _Float(_Undecided, float):
    __hash__ = float.__hash__


class _Int(_Undecided, int):
    __hash__ = int.__hash__


def _made_up(x: Scalar, turn: int) -> Number:
    """A value for an argument that no constant of the file has."""
    place = 2 * (x.index or 0) + turn + 1
    return math.pi * 1e-3 * place + 0.7 if isinstance(x.value, float) else 1_000_003 * place
