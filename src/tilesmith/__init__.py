"""Tilesmith multiplies matrices on NVIDIA GPUs from PyTorch, with its own kernels.

>>> import torch, tilesmith
>>> tilesmith.matmul(torch.ones(2, 3), torch.ones(3, 4)).shape
torch.Size([2, 4])
"""

from typing import TYPE_CHECKING

from tilesmith.process import is_command_line
from tilesmith.version import VERSION

# A program that imports the package has every name and every operator at once: a saved program may name an operator
# that nobody has called yet. Only the command line waits for them, which answers `--help` in a tenth of the time.
if TYPE_CHECKING or not is_command_line():
    from tilesmith.names import (
        ColdCaptureError,
        CompilationError,
        DriverError,
        EmulationError,
        Explanation,
        Packed,
        Stat,
        Stats,
        UnavailableError,
        disable,
        distributed,
        emulate,
        enable,
        explain,
        linear,
        matmul,
        nn,
        override,
        pack,
        stats,
        warmup,
    )
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tilesmith import names

        # All of them: to import `tilesmith.explain` also sets an attribute of that name, which is not the function.
        globals().update({each: getattr(names, each) for each in names.__all__})
        return globals()[name]


__version__ = VERSION

__all__ = [
    "ColdCaptureError",
    "CompilationError",
    "DriverError",
    "EmulationError",
    "Explanation",
    "Packed",
    "Stat",
    "Stats",
    "UnavailableError",
    "__version__",
    "disable",
    "distributed",
    "emulate",
    "enable",
    "explain",
    "linear",
    "matmul",
    "nn",
    "override",
    "pack",
    "stats",
    "warmup",
]
