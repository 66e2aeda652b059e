"""What a call of the candidate did: which operations and kernels ran, and what it changed in torch and elsewhere."""

import builtins
import ctypes
import inspect
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.bench import timing
from tilesmith.kernelbench.check.analysis import Mode

_PERSISTING_L2: Final = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE

# Where a trick would put its own function. Names are looked up as they are stored: a class method is a new object
# each time that it is taken through its class.
_WATCHED: Final[tuple[Any, ...]] = (
    builtins,
    time,
    os,
    threading.Thread,
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
    torch.linalg,
    torch.autograd,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
    torch.profiler,
    torch.testing,
    torch.random,
    torch.utils._python_dispatch,
    TorchDispatchMode,
    timing,
)
# By torch itself, when torch._dynamo is first imported or torch.compile is first used.
_REPLACED_BY_TORCH: Final = {
    (torch, "manual_seed"),
    (torch.nn.Module, "__init__"),
    (torch.nn.Module, "__setstate__"),
}


class Untouched:
    """The functions of torch and of the clocks as they are now, to be compared later."""

    def __init__(self, *more: Any) -> None:
        self._before = {owner: _functions(owner) for owner in (*_WATCHED, *more)}

    def changed(self) -> list[str]:
        """The names that have been given to something else."""
        return sorted(
            f"{getattr(owner, '__name__', owner)}.{name}"
            for owner, before in self._before.items()
            for name, value in before.items()
            if inspect.getattr_static(owner, name, None) is not value and (owner, name) not in _REPLACED_BY_TORCH
        )


def _functions(owner: Any) -> dict[str, Any]:
    found = {}
    for name in dir(owner):
        value = inspect.getattr_static(owner, name, None)
        if callable(value) or isinstance(value, classmethod | staticmethod | property):
            found[name] = value
    return found


class Operations(Mode):
    """The names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def called(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.names.append(name)
        return operation(*args, **kwargs)


def operations(call: Callable[[], object]) -> list[str]:
    """The operations of ATen that a call makes, in order."""
    seen = Operations()
    with seen:
        call()
    return seen.names


def kernels(call: Callable[[], object]) -> list[str]:
    """The kernels and copies that a call runs on the GPU."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        call()
        torch.cuda.synchronize()
    events: Any = profiler.events()
    return [event.name for event in events if event.device_type == DeviceType.CUDA]


def persisting_l2() -> int:
    """The bytes of L2 that are set aside for persisting accesses in this context."""
    torch.cuda.synchronize()  # there is a context from here on
    size = ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuCtxGetLimit(ctypes.byref(size), _PERSISTING_L2)
    return int(size.value) if status == 0 else 0
