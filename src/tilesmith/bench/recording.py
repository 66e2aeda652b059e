"""The products of a user's program: their operands without their values, and how often each was called."""

import runpy
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.core import accuracy as accuracies
from tilesmith.core.problem import OUT_DTYPES, Problem

# Operations that are products, with the places of their operands.
_PRODUCTS: Final = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "tilesmith::matmul": (0, 1),
    "tilesmith::matmul_out": (0, 1),
}


class Recorder(TorchDispatchMode):
    """Notes the products of types that Tilesmith takes while it is entered, forward and backward."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.problems: Counter[Problem] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        places = _PRODUCTS.get(func._schema.name)
        if places is not None:
            self._note(*(args[place] for place in places))
        return func(*args, **(kwargs or {}))

    def _note(self, a: Tensor, b: Tensor) -> None:
        if a.dtype == b.dtype and a.dtype in OUT_DTYPES and a.numel() and b.numel():
            self.problems[Problem.of(_ghost(a), _ghost(b), accuracy=accuracies.numerics(None, a.dtype).accuracy)] += 1


def _ghost(x: Tensor) -> Tensor:
    """A tensor like it, without memory, as if its memory were aligned."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def record(script: Path, arguments: Sequence[str] = ()) -> Counter[Problem]:
    """Runs a program as `python script arguments...` would, and returns its products."""
    before = sys.argv, list(sys.path)
    recorder = Recorder()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        with recorder:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path = before
    return recorder.problems
