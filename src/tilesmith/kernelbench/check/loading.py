"""Files of KernelBench's kind as modules, and their models on a device."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


def leaves(result: object) -> list[object]:
    """What a model returned: one thing, or those of a tuple or list, in order."""
    if isinstance(result, list | tuple):
        return [each for part in result for each in leaves(part)]
    return [result]
