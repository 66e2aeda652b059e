"""Who multiplies the tensors of a type of device.

CUDA has `runtime.executor`. CPU tensors are torch's, except where somebody else has registered for them: the emulator
does, and then stands in for a GPU.
"""

from collections.abc import Callable
from typing import Final, Protocol

import torch

from tilesmith.core.accuracy import Numerics
from tilesmith.core.device import Device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.core.plan import Plan


class Runnable(Protocol):
    """A plan that can be called with operands like those it was made for."""

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor: ...

    def add_bias(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor: ...

    def add_residual(self, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor: ...


class Executor(Protocol):
    """Plans and runs products. Two that are equal make the same plans."""

    def __hash__(self) -> int: ...

    def gpu_of(self, tensor: torch.Tensor) -> Device:
        """The GPU that products of this tensor are planned for."""

    def compiled(self, plan: Plan, device_index: int) -> Runnable:
        """The plan, ready to run on the tensors with this index."""

    def multiply(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        numerics: Numerics,
        out_dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        """The product of two tensors, planned and run."""


class DeferredError(Exception):
    """An executor has noted a plan for later: this time torch multiplies."""


Current = Callable[[], Executor | None]
_current: Final[dict[str, Current]] = {}


def register(device_type: str, current: Current) -> Current:
    """Has `current` asked for each product of this device type: None leaves it to torch. Returns who was before."""
    before = _current.get(device_type, lambda: None)
    _current[device_type] = current
    return before


def executor_on(device_type: str) -> Executor | None:
    """Who multiplies tensors of this device type here and now; None is torch."""
    current = _current.get(device_type)
    return None if current is None else current()
