"""The numbers of a model that its forward reads, and a name for everything else that its constructor decides."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from tilesmith.kernelbench.calls import Made
from tilesmith.kernelbench.loading import MODULE, Loaded
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.running import called
from tilesmith.kernelbench.templates import template

_MAX_SETTINGS: Final = 50


@dataclass(frozen=True, slots=True)
class Setting:
    """A number in an attribute of the model that forward hands to torch as it is."""

    module: nn.Module
    name: str
    path: str
    value: float
    made_up: float  # which no other number is


def settings_of(problem: ProblemFile, loaded: Loaded, way: list[Made]) -> list[Setting]:
    """Those numbers of the file's own modules that are arguments of operations and decide nothing: with another value
    forward calls the same (`way`), with that."""
    found: list[Setting] = []
    for setting in _candidates(loaded.model):
        try:
            with made_up([setting]):
                calls = called(problem, loaded)
        except ProblemError:
            continue
        if calls != way and [_with_number(x, setting.made_up, setting.value) for x in calls] == way:
            found.append(setting)
    return found


def _candidates(model: nn.Module) -> Iterator[Setting]:
    count = 0
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()) if type(module).__module__ == MODULE else ():
            if type(value) is float and math.isfinite(value) and count < _MAX_SETTINGS:
                count += 1
                number = 0.5 + 0.4 * math.modf(math.sqrt(2) * count)[0]
                yield Setting(module, name, ".".join(filter(None, [path, name])), value, number)


@contextmanager
def made_up(settings: Iterable[Setting]) -> Iterator[None]:
    """Attributes have their made-up values here."""
    for x in settings:
        setattr(x.module, x.name, x.made_up)
    try:
        yield
    finally:
        for x in settings:
            setattr(x.module, x.name, x.value)


def _with_number(call: Made, old: float, new: float) -> Made:
    def changed(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(changed, x))
        return type(x)(repr(new)) if x == repr(old) else x

    return replace(call, arguments=changed(call.arguments))


def digest(model: nn.Module, settings: Sequence[str]) -> str:
    """A name for all numbers, texts and such that the constructor has left in the model, but for the settings, which
    are paths: as written modules have it."""
    names: dict[str, Any] = {}
    exec(template("made.py.in"), names)
    return names["_digest"](model, tuple(settings))  # type: ignore[no-any-return]
