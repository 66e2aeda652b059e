"""A whole model as a forward of our products and torch's other operations, by way of torch.export.

What `trace` has no expression for is taken as it comes: torch exports forward, in training and in evaluation and with
sizes that stay open, and the graph is written down operation by operation. What the graph does not say is made sure
of here, or by the written module when it is made and called:

- numbers of the model that forward reads and that decide nothing stay attributes; all others must be as they were,
  which a digest tells;
- sizes that something was decided by have to be as they were, where forward takes others;
- a second call does the same, and leaves nothing behind but what the graph says.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from textwrap import indent
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tilesmith.kernelbench.calls import Made
from tilesmith.kernelbench.chain_spec import ChainSpec
from tilesmith.kernelbench.expression import Input, Scalar
from tilesmith.kernelbench.graph_text import Lines, Spelling
from tilesmith.kernelbench.guards import modes_kept, resized
from tilesmith.kernelbench.loading import Loaded, UnsupportedError, load, on_meta, place
from tilesmith.kernelbench.modes import merged
from tilesmith.kernelbench.names import attribute_code
from tilesmith.kernelbench.open_sizes import OpenSizes, Place
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.rules import RefusalError
from tilesmith.kernelbench.running import called, of_forward, tensors
from tilesmith.kernelbench.settings import Setting, digest, made_up, settings_of
from tilesmith.kernelbench.state import changes, state_of
from tilesmith.kernelbench.whole_model import WholeModel
from tilesmith.torch_ops.linear import finished

_SECONDS_FOR_SIZES: Final = 0.7
_SIZES_OF_A_PLACE: Final = 3  # that are tried in any case


def exported(problem: ProblemFile, loaded: Loaded) -> WholeModel:
    """A problem's model. This runs the file's code in this process."""
    model, names = loaded.model, [x.name for x in loaded.inputs]
    _refuse_models(problem, model)
    with modes_kept(model):
        ways = {}
        for mode in (True, False):
            model.train(mode)
            ways[mode] = _way(problem, loaded)
        settings = settings_of(problem, loaded, ways[False])
        others = _Others.of(problem, loaded)
        graphs: dict[bool, _Graph] = {}
        texts: dict[bool, list[str]] = {}
        chains: tuple[ChainSpec, ...] = ()
        for mode in (True, False) if ways[True] != ways[False] else (True,):
            model.train(mode)
            graphs[mode] = _graph(problem, loaded, settings, chains)
            chains = graphs[mode].lines.chains
            texts[mode] = [*graphs[mode].checks(loaded, others, ways[False]), *graphs[mode].lines.text]
            _compare(problem, loaded, others.taken, texts[mode], chains)
    lines = [graph.lines for graph in graphs.values()]
    own = digest(model, [x.path for x in settings])
    if own != digest(load(problem).model, [x.path for x in settings]):
        raise UnsupportedError(f"{problem.name}: the constructor does not leave the same numbers in every model")
    return WholeModel(
        arguments=tuple(names),
        forward=_forward(texts),
        products=tuple(dict.fromkeys(spec for each in reversed(lines) for spec in each.products)),
        chains=chains,
        parts=tuple(sorted(set().union(*(each.parts for each in lines), _own_parts(texts)))),
        left=lines[-1].left,
        settings=tuple(x.path for x in settings),
        digest=own,
    )


def _forward(texts: Mapping[bool, Sequence[str]]) -> tuple[str, ...]:
    """The statements of forward: of those in training (True) and in evaluation, if they differ."""
    return ("_one_mode(self)", *merged(texts[True], texts[False])) if False in texts else tuple(texts[True])


def _own_parts(texts: Mapping[bool, Sequence[str]]) -> Iterator[str]:
    """What such statements need of a module."""
    if any(line.startswith(("_takes(", "_requires(")) for text in texts.values() for line in text):
        yield "sizes"
    if False in texts:
        yield "modes"


def _refuse_models(problem: ProblemFile, model: nn.Module) -> None:
    name = problem.name
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise UnsupportedError(f"{name}: a part of Model has hooks, which would not run in the new forward")


def _way(problem: ProblemFile, loaded: Loaded) -> list[Made]:
    """What forward calls of torch, with which numbers; the same whenever it runs, with gradients and without."""
    before = state_of(loaded)
    first, second = (called(problem, loaded) for _ in range(2))
    buffers = {f"self.{path}" for path, _ in loaded.model.named_buffers()}  # these the graph knows
    if changed := set(changes(before, state_of(loaded))) - buffers:
        raise UnsupportedError(f"{problem.name}: forward changes {', '.join(sorted(changed))}")
    with torch.no_grad():
        without = called(problem, loaded)
    for other, when in (
        (second, "does not do the same in every call"),
        (without, "takes another way without gradients"),
    ):
        if other != first:
            call = next((new or old for old, new in zip_longest(first, other) if old != new), None)
            at = place(problem, call.line) if call and call.line else ""
            raise UnsupportedError(f"{problem.name}: forward does not do the same {when}{at}")
    return first


# The graph.


@dataclass(frozen=True, slots=True)
class _Graph:
    """An exported forward, in one mode."""

    lines: Lines
    open_sizes: OpenSizes

    def checks(self, loaded: Loaded, others: "_Others", way: list[Made]) -> list[str]:
        """Statements that ask for the sizes by which something is decided. `way`: what forward calls."""
        decisive: set[str] = set()
        for other in others.taken:
            if other.way != way:
                decisive |= self.open_sizes.decided_otherwise([x.shape for x in other.inputs])
        return self.open_sizes.checks([x.name for x in loaded.inputs], others.refused, decisive)


def _graph(problem: ProblemFile, loaded: Loaded, settings: Sequence[Setting], chains: Sequence[ChainSpec]) -> _Graph:
    with made_up(settings):
        program = _exported(problem, loaded)
    names = [x.name for x in loaded.inputs]
    numbers = {x.made_up: attribute_code(x.path, loaded.model) for x in settings}
    try:
        spelling = Spelling(program.graph, dict(_given(problem, loaded, program)), names, numbers, chains)
        return _Graph(spelling.lines(program.call_spec.out_spec), OpenSizes.of(program))
    except RefusalError as error:
        raise UnsupportedError(f"{problem.name}: {error} is not supported") from None


def _exported(problem: ProblemFile, loaded: Loaded) -> ExportedProgram:
    """With all sizes open; where torch cannot reason about these, with the first one of each argument, or with none."""
    arguments = tensors(loaded.inputs)
    if len(arguments) != len(loaded.inputs):
        raise UnsupportedError(f"{problem.name}: forward takes a number, which may decide something")
    failed: ProblemError | None = None
    for most in (max((x.dim() for x in arguments), default=0), 1, 0):
        sizes = tuple(dict.fromkeys(range(min(x.dim(), most)), Dim.AUTO) for x in arguments)
        with on_meta(), _NumbersAreFull(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export = partial(torch.export.export, loaded.model, tuple(arguments), dynamic_shapes=sizes, strict=False)
            try:
                return of_forward(problem, export)  # type: ignore[no-any-return]
            except ProblemError as error:  # forward as such has run
                failed = failed or error
    assert failed is not None
    raise failed


class _NumbersAreFull(TorchFunctionMode):
    """Makes a tensor of one number by an operation, which the graph then has, and not as a constant of the graph."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and args and isinstance(args[0], bool | int | float):
            dtypes = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
            return torch.full((), args[0], dtype=kwargs.get("dtype") or dtypes[type(args[0])])
        return func(*args, **kwargs)


def _given(problem: ProblemFile, loaded: Loaded, program: ExportedProgram) -> Iterator[tuple[str, str]]:
    """The names of the graph's arguments, each with its text."""
    users = iter(loaded.inputs)
    for spec in program.graph_signature.input_specs:
        match spec.kind:
            case InputKind.USER_INPUT:
                yield spec.arg.name, next(users).name
            case InputKind.PARAMETER | InputKind.BUFFER:
                assert spec.target is not None
                yield spec.arg.name, attribute_code(spec.target, loaded.model)
            case _:
                raise UnsupportedError(f"{problem.name}: forward makes a tensor of numbers: not supported")
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise UnsupportedError(f"{problem.name}: forward changes its arguments: not supported")


# Other sizes.


@dataclass(frozen=True, slots=True)
class _Other:
    """Arguments of other sizes that forward takes, and what it calls then."""

    inputs: tuple[Input, ...]
    way: list[Made]


@dataclass(frozen=True, slots=True)
class _Others:
    """Arguments of other sizes: those that forward takes, and the places where it took no other size."""

    taken: tuple[_Other, ...]
    refused: frozenset[Place]

    @classmethod
    def of(cls, problem: ProblemFile, loaded: Loaded) -> "_Others":
        """A few for each place, and then as many as there is time for."""
        taken: list[_Other] = []
        tried: set[Place] = set()
        accepted: set[Place] = set()
        deadline = time.process_time() + _SECONDS_FOR_SIZES
        for turn, inputs in _in_turns(loaded.inputs):
            if turn >= _SIZES_OF_A_PLACE and time.process_time() > deadline:
                break
            places = _changed(loaded.inputs, inputs)
            tried |= places
            with torch.no_grad(), suppress(ProblemError):
                taken.append(_Other(inputs, called(problem, loaded, inputs)))
                accepted |= places
        return cls(tuple(taken), frozenset(tried - accepted))


def _in_turns(inputs: Sequence[Input | Scalar]) -> Iterator[tuple[int, tuple[Input, ...]]]:
    """Arguments of other sizes, of each place one after the other: the largest first, which fail the least."""
    by_places: dict[frozenset[Place], list[tuple[Input, ...]]] = {}
    for each in resized(tuple(inputs)):
        others = tuple(x for x in each if isinstance(x, Input))
        by_places.setdefault(frozenset(_changed(inputs, others)), []).insert(0, others)
    for turn, row in enumerate(itertools.zip_longest(*by_places.values())):
        yield from ((turn, others) for others in row if others is not None)


def _changed(old: Sequence[Input | Scalar], new: Sequence[Input]) -> set[Place]:
    return {
        (i, j)
        for i, (x, y) in enumerate(zip(old, new, strict=True))
        if isinstance(x, Input)
        for j, (before, now) in enumerate(zip(x.shape, y.shape, strict=True))
        if before != now
    }


def _compare(
    problem: ProblemFile,
    loaded: Loaded,
    others: Sequence[_Other],
    text: Sequence[str],
    chains: Sequence[ChainSpec],
) -> None:
    """The text gives for other sizes what forward does, or says that it does not take them: for one size of each place,
    and then for as many as there is time for."""
    run = _executable([x.name for x in loaded.inputs], text, chains)
    deadline = time.process_time() + _SECONDS_FOR_SIZES
    places = sum(len(x.shape) for x in loaded.inputs if isinstance(x, Input))
    for number, inputs in enumerate(itertools.chain([loaded.inputs], (other.inputs for other in others))):
        if number > places and time.process_time() > deadline:
            break
        given = tensors(inputs)
        with on_meta(), torch.no_grad():
            try:
                expected = _shapes(loaded.model(*given))
            except Exception:  # in this mode
                continue
            try:
                found = _shapes(run(loaded.model, *given))
            except _SizeError:
                continue
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
        if found != expected:
            sizes = ", ".join(str(list(x.shape)) for x in given)
            raise UnsupportedError(f"{problem.name}: forward takes another way for arguments of {sizes}: {found}")


def _shapes(result: Any) -> Any:
    return pytree.tree_map(lambda x: (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x, result)


def _executable(arguments: Sequence[str], lines: Sequence[str], chains: Sequence[ChainSpec]) -> Callable[..., Any]:
    """A forward of such lines, with torch's functions in the place of a module's, and chains step by step."""
    names: dict[str, Any] = {
        "_torch": torch,
        "_aten": torch.ops.aten,
        "_matmul": torch.matmul,
        "_linear": _linear,
        "_einsum": torch.einsum,
        "_added": lambda c, a, b, beta, alpha: (c * beta if beta else 0) + alpha * torch.matmul(a, b),
        "_takes": _takes,
        "_requires": _requires,
        "_chain": lambda *_: lambda steps: steps,
    }
    for number, chain in enumerate(chains):
        exec(chain.function(number), names)
    body = indent("\n".join(lines), "    ")
    exec(f"def forward({', '.join(['self', *arguments])}):\n{body}", names)
    return names["forward"]  # type: ignore[no-any-return]


class _SizeError(ValueError):
    """An argument has a size that a forward does not take."""


def _takes(name: str, x: Tensor, sizes: Sequence[int | None]) -> None:
    if len(sizes) != x.dim() or any(n not in (None, own) for n, own in zip(sizes, x.shape, strict=True)):
        raise _SizeError(name)


def _requires(condition: bool, text: str) -> None:
    if not condition:
        raise _SizeError(text)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    result = nn.functional.linear(x, weight, bias)
    return result if activation is None else finished(result, activation, None)
