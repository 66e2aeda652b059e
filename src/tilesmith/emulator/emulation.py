"""Products of CPU tensors by the kernels of a GPU that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from tilesmith.core.accuracy import Numerics
from tilesmith.core.device import STAND_IN, Device, named
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.core.plan import Plan
from tilesmith.emulator.run import run
from tilesmith.runtime import registry
from tilesmith.runtime.executor import planned


@dataclass(frozen=True, slots=True)
class EmulatedPlan:
    """A plan that is called with CPU tensors like those it was made for."""

    plan: Plan
    seed: int | None

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor | None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> Tensor:
        return run(self.plan, a, b, out=out, packed=packed or (None, None), epilogue=epilogue, seed=self.seed)

    def add_bias(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return self(a, b, epilogue=Epilogue(bias=bias))

    def add_residual(self, a: Tensor, b: Tensor, residual: Tensor) -> Tensor:
        return self(a, b, epilogue=Epilogue(residual=residual))


@dataclass(frozen=True, slots=True)
class Emulation:
    """An executor of CPU tensors: a GPU by name, and the order in which its threads run."""

    device: Device
    seed: int | None

    def gpu_of(self, tensor: Tensor) -> Device:
        return self.device

    def compiled(self, plan: Plan, device_index: int) -> EmulatedPlan:
        return EmulatedPlan(plan, self.seed)

    def multiply(
        self,
        a: Tensor,
        b: Tensor,
        numerics: Numerics,
        out_dtype: torch.dtype | None = None,
        out: Tensor | None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> Tensor:
        """The product of two CPU tensors, planned for the GPU."""
        a, b = a.resolve_neg(), b.resolve_neg()
        plan = planned(a, b, self.device, numerics, out_dtype, out, packed, epilogue)
        if plan is None:
            return self.multiply(a.float(), b.float(), numerics, out_dtype, out, packed, epilogue)
        return EmulatedPlan(plan, self.seed)(a, b, out, packed, epilogue)


_active: ContextVar[Emulation | None] = ContextVar("tilesmith_emulation", default=None)


def active() -> Emulation | None:
    """What `emulate` has set for this thread."""
    return _active.get()


registry.register("cpu", active)


@contextmanager
def emulate(gpu: str = STAND_IN, *, seed: int | None = None) -> Iterator[None]:
    """Inside of it, `tilesmith.matmul` multiplies CPU tensors as a GPU would: with the same plan and the same kernels,
    which run as C++ on the CPU. That is slow, and for small products. It needs a C++ compiler.

    A kernel that reads or writes where it must not, or waits for ever, raises an `EmulationError`.

    Args:
        gpu: one of "h200", "h100", "a100", "l4", "rtx4090" and "t4".
        seed: an order in which the GPU's threads run, and its asynchronous work is done; None is the fastest one.

    >>> import tilesmith
    >>> with emulate("h200"):
    ...     tilesmith.matmul(torch.ones(2, 3), torch.ones(3, 2))
    tensor([[3., 3.],
            [3., 3.]])
    """
    token = _active.set(Emulation(named(gpu), seed))
    try:
        yield
    finally:
        _active.reset(token)
