"""Tilesmith multiplies matrices on NVIDIA GPUs from PyTorch, with its own kernels.

>>> import torch, tilesmith
>>> tilesmith.matmul(torch.ones(2, 3), torch.ones(3, 4)).shape
torch.Size([2, 4])
"""

from tilesmith import nn
from tilesmith.ahead import explain, warmup
from tilesmith.api import linear, matmul, pack
from tilesmith.core.errors import ColdCaptureError, CompilationError, DriverError, EmulationError, UnavailableError
from tilesmith.core.packed import Packed
from tilesmith.emulator import emulate
from tilesmith.explain import Explanation
from tilesmith.override import Stat, Stats, disable, enable, override, stats
from tilesmith.torch_ops import distributed
from tilesmith.version import VERSION

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
