"""Files of KernelBench's kind as modules, and their models on a device."""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor


class BadFileError(Exception):
    """A file lacks a name that it must have."""


def load(path: str, name: str, required: tuple[str, ...]) -> ModuleType:
    """Runs a file as the module `name`, which must then have the required names."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadFileError(f"{Path(path).name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and inspect look there
    spec.loader.exec_module(module)
    missing = [each for each in required if not hasattr(module, each)]
    if missing:
        raise BadFileError(f"{Path(path).name} has no {' and no '.join(missing)}")
    return module


def build(model: Any, arguments: list[Any], seed: int, device: str) -> Any:
    """A model on the device. The same seed gives the same parameters to two models that make them in one order."""
    torch.manual_seed(seed)
    built = model(*arguments)
    return built.to(device) if isinstance(built, torch.nn.Module) else built


def on(device: str, values: list[Any]) -> list[Any]:
    """The tensors of a list on the device, with their strides and what lies in the gaps between their elements."""
    return [
        _relaid(storage_of(x).to(device), x) if isinstance(x, Tensor) and x.device.type != device else x for x in values
    ]


def twins(values: list[Any]) -> list[Any]:
    """Copies of the tensors of a list, in memory of their own that is laid out in the same way."""
    return [_relaid(storage_of(x).clone(), x) if isinstance(x, Tensor) else x for x in values]


def storage_of(x: Tensor) -> Tensor:
    """All that lies in a tensor's memory, once each, also of one whose elements share it."""
    length = x.untyped_storage().nbytes() // x.element_size()
    return torch.as_strided(x.detach(), (length,), (1,), 0)


def _relaid(storage: Tensor, x: Tensor) -> Tensor:
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def has_nan(x: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of a type that has NaN: of floats, or of complex numbers."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def as_floats(x: Tensor) -> Tensor:
    """Complex numbers as pairs of floats, all else as it is."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def leaves(tree: object) -> list[Any]:
    """What is in lists, tuples and dictionaries, in order; of a dictionary in the order of its keys' names. torch has
    such functions, which a candidate could replace.

    >>> leaves([1, {"b": (2, 3), "a": 4}])
    [1, 4, 2, 3]
    """
    parts = _parts(tree)
    return [tree] if parts is None else [each for part in parts for each in leaves(part)]


def with_leaves(tree: Any, values: Iterable[Any]) -> Any:
    """The same lists, tuples and dictionaries with other leaves.

    >>> with_leaves([1, {"b": (2, 3), "a": 4}], "wxyz")
    ['w', {'b': ('y', 'z'), 'a': 'x'}]
    """
    return _rebuilt(tree, iter(values))


def keys(tree: object) -> str:
    """The keys by which a caller finds the leaves. Lists and tuples are alike, and so is one thing alone.

    >>> keys([1, {"b": (2, 3), "a": 4}]), keys((1,)) == keys(1)
    ("*, {'a': *, 'b': *, *}", True)
    """
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {keys(tree[key])}" for key in sorted(tree, key=repr)) + "}"
    parts = _parts(tree)
    return "*" if parts is None else ", ".join(map(keys, parts))


def _parts(tree: Any) -> list[Any] | None:
    if isinstance(tree, dict):
        return [tree[key] for key in sorted(tree, key=repr)]
    return list(tree) if isinstance(tree, list | tuple) else None


def _rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, dict):
        found = {key: _rebuilt(tree[key], values) for key in sorted(tree, key=repr)}
        return {key: found[key] for key in tree}
    if not isinstance(tree, list | tuple):
        return next(values)
    parts = [_rebuilt(part, values) for part in tree]
    if isinstance(tree, list):
        return parts
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
