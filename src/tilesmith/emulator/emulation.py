"""Products of CPU tensors by the kernels of a GPU that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from tilesmith import prepared
from tilesmith.device import STAND_IN, Device, named
from tilesmith.emulator.run import run
from tilesmith.epilogue import Epilogue


@dataclass(frozen=True, slots=True)
class Emulation:
    """A GPU by name, and the order in which its threads run."""

    device: Device
    seed: int | None

    def multiply(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        accuracy: str | None = None,
        out_dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        """The product of two CPU tensors, planned for the GPU."""
        a, b = a.resolve_neg(), b.resolve_neg()
        plan = prepared.planned(a, b, self.device, accuracy, out_dtype, out, epilogue=epilogue)
        if plan is None:
            return self.multiply(a.float(), b.float(), accuracy, out_dtype, out, epilogue)
        return run(plan, a, b, out=out, epilogue=epilogue, seed=self.seed)


_active: ContextVar[Emulation | None] = ContextVar("tilesmith_emulation", default=None)


def active() -> Emulation | None:
    """What `emulate` has set for this thread."""
    return _active.get()


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
