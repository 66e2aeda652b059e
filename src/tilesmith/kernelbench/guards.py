"""That one trace stands for all calls of forward: it is traced again in other circumstances, and what differs is found.

In training and evaluation forward may compute different things; both are kept. Everything else is refused by name:
other ways for other sizes or without gradients, what changes from call to call, and what a call leaves behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Final

from torch import nn

from tilesmith.kernelbench.calls import Calls, Made
from tilesmith.kernelbench.expression import Expression, Input, Scalar, Shape
from tilesmith.kernelbench.loading import ForwardError, Loaded, UnsupportedError, load, place
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.state import changes, state_of
from tilesmith.kernelbench.trace import run, trace, with_settings

_REPEATS: Final = 3  # further calls that have to do the same as the first


@dataclass(frozen=True, slots=True)
class Traced:
    """What forward computes: in training and in evaluation, as a module's attribute `training` says."""

    training: Expression
    evaluation: Expression


def traced(problem: ProblemFile, loaded: Loaded | None = None) -> Traced:
    """What every call of a problem's forward computes. This runs the file's code in this process."""
    loaded = loaded or load(problem)
    model = loaded.model
    if model._forward_hooks or model._forward_pre_hooks:
        raise UnsupportedError(f"{problem.name}: Model has hooks, which would run again around the new forward")
    state = state_of(loaded)
    found = trace(problem, loaded)
    _refuse_changes(problem, loaded, state)
    way = _way(problem, loaded, found)
    _compare_gradients(problem, loaded, way)
    _compare_sizes(problem, loaded, way)
    modes = _modes(problem, loaded, found)
    _refuse_changes(problem, loaded, state)
    return modes


def _refuse_changes(problem: ProblemFile, loaded: Loaded, before: dict[str, object]) -> None:
    if changed := changes(before, state_of(loaded)):
        raise UnsupportedError(f"{problem.name}: forward changes {', '.join(sorted(changed))}")


def _way(problem: ProblemFile, loaded: Loaded, found: Expression) -> list[Made]:
    """What forward calls, which is the same whenever it runs."""
    other = f"{problem.name}: forward does not do the same in every call"
    runs = [_run(problem, loaded, other) for _ in range(_REPEATS)]
    _, first = runs[0]
    for _, way in runs:
        if way != first:
            raise UnsupportedError(f"{other}{_difference(problem, first, way)}")
    if any(result is not found for result, _ in runs):
        raise UnsupportedError(other)
    return first


def _compare_gradients(problem: ProblemFile, loaded: Loaded, way: list[Made]) -> None:
    other = f"{problem.name}: forward takes another way where gradients are switched off"
    _, made = _run(problem, loaded, other, gradients=False)
    if made != way:
        raise UnsupportedError(f"{other}{_difference(problem, way, made)}")


def _run(problem: ProblemFile, loaded: Loaded, other: str, *, gradients: bool = True) -> tuple[Expression, list[Made]]:
    """What a call of forward computes, and what it calls. `other` is what an error means."""
    calls = Calls(problem)
    try:
        return run(problem, loaded, calls, gradients=gradients), calls.made
    except (UnsupportedError, ForwardError) as error:
        raise UnsupportedError(f"{other}: {error}") from None


def _compare_sizes(problem: ProblemFile, loaded: Loaded, way: list[Made]) -> None:
    """Sizes that forward does not take, as a rule because parameters have others, are left out."""
    other = f"{problem.name}: forward takes another way for other sizes"
    for inputs in resized(loaded.inputs):
        calls = Calls(problem)
        try:
            run(problem, loaded, calls, inputs)
            done = calls.made
        except UnsupportedError as error:
            # A call that torch itself does in another way for such sizes is still the same call; a part of a tensor
            # that used to be the whole is not.
            done = calls.begun
            if calls.is_part or done != way[: len(done)]:
                raise UnsupportedError(f"{other}: {error}") from None
        except ForwardError:
            done = calls.begun
        if done != (way if done is calls.made else way[: len(done)]):
            raise UnsupportedError(f"{other}{_difference(problem, way, done)}")


def _difference(problem: ProblemFile, first: list[Made], second: list[Made]) -> str:
    """ " at FILE:LINE: CODE" of the first call that only one of them has."""
    calls = (new or old for old, new in zip_longest(first, second) if old != new)
    call = next(calls, None)
    return place(problem, call.line) if call and call.line else ""


def resized(inputs: tuple[Input | Scalar, ...]) -> Iterator[tuple[Input | Scalar, ...]]:
    """The inputs with other sizes: wherever one size stands, and at each of its places alone."""
    places = [(size, i, j) for i, x in enumerate(inputs) if isinstance(x, Input) for j, size in enumerate(x.shape)]
    for size, group in groupby(sorted(places), key=lambda entry: entry[0]):
        together = [(i, j) for _, i, j in group]
        for chosen in [together, *([one] for one in together if len(together) > 1)]:
            for new in sorted({1, 2, 3, size // 2, size + 1, 2 * size, 16 * size} - {0, size}):
                yield tuple(
                    _with_sizes(x, {j: new for i, j in chosen if i == k}) if isinstance(x, Input) else x
                    for k, x in enumerate(inputs)
                )


def _with_sizes(x: Input, sizes: dict[int, int]) -> Input:
    """An input of other sizes, dense, with its dimensions in the same order in memory."""
    shape = tuple(sizes.get(i, size) for i, size in enumerate(x.shape))
    return replace(x, shape=shape, strides=_strides(shape, x.strides)) if sizes else x


def _strides(shape: Shape, old: Shape) -> Shape:
    strides, step = [0] * len(shape), 1
    for i in sorted(range(len(shape)), key=lambda i: (old[i], -i)):
        if old[i]:
            strides[i] = step
            step *= shape[i]
    return tuple(strides)


def _modes(problem: ProblemFile, loaded: Loaded, found: Expression) -> Traced:
    model = loaded.model
    with modes_kept(model):
        built_for_training = model.training
        modes, named = [], []
        for training in (True, False):
            model.train(training)
            try:
                modes.append(trace(problem, loaded))
                named.append(with_settings(problem, loaded, modes[-1]))
            except UnsupportedError as error:
                name = "training" if training else "evaluation"
                raise UnsupportedError(f"in {name}, {error}") from None
        if modes[0] is not modes[1]:  # then self.training alone has to decide
            for inner in (True, False):
                model.train(inner)
                model.training = not inner
                modes.append(trace(problem, loaded))
        if modes[2:] not in ([], modes[1::-1]) or found is not modes[0 if built_for_training else 1]:
            raise UnsupportedError(f"{problem.name}: forward depends on whether a part of the model is in training")
    return Traced(*named)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """All parts of a model are in the mode afterwards that they are in now."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
