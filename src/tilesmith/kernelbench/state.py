"""What a call of forward could leave behind: the attributes of a model and the variables of its file, as values that
can be compared. Whatever is neither a number, a text, a container nor of the file itself stands for itself."""

from collections.abc import Mapping, Set
from types import FunctionType
from typing import Any, Final

import torch
from torch import nn

from tilesmith.kernelbench.loading import MODULE, Loaded

_TABLES: Final = ("_parameters", "_buffers", "_modules")  # of a module, which are attributes to those who use it


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what differs."""
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]


def state_of(loaded: Loaded) -> dict[str, Any]:
    """By the names that a person gives them: "self.count", or "the variable COUNT"."""
    found = {}
    for path, module in loaded.model.named_modules():
        attributes = {name: value for name, value in vars(module).items() if name not in _TABLES}
        for table in _TABLES:
            attributes |= vars(module).get(table) or {}
        for name, value in attributes.items():
            found[".".join(filter(None, ["self", path, name]))] = _value(value, frozenset())
    for name, value in loaded.variables.items():
        if name != "__builtins__":
            found[f"the variable {name}"] = _value(value, frozenset())
    return found


def _value(x: Any, seen: frozenset[int]) -> Any:
    if x is None or isinstance(x, bool | int | float | complex | str | bytes):
        return (type(x), repr(x))
    if id(x) in seen:
        return id(x)
    seen |= {id(x)}
    if isinstance(x, torch.Tensor):
        return (id(x), None if x.is_inference() else x._version, x.requires_grad)
    if isinstance(x, Mapping):
        return (id(x), tuple((_value(key, seen), _value(value, seen)) for key, value in x.items()))
    if isinstance(x, Set):
        return (id(x), frozenset(_value(value, seen) for value in x))
    if isinstance(x, list | tuple):
        return (id(x), tuple(_value(value, seen) for value in x))
    if isinstance(x, nn.Module) or getattr(x, "__module__", None) != MODULE:
        return id(x)
    if isinstance(x, FunctionType):
        return (id(x), _value([x.__defaults__, x.__kwdefaults__, vars(x)], seen)[1])
    return (id(x), _value(dict(getattr(x, "__dict__", {})), seen)[1])
