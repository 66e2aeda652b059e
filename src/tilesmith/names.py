"""What `tilesmith` exports. Importing this registers the operators `torch.ops.tilesmith`."""

import tilesmith.nn as nn
from tilesmith.ahead import explain, warmup
from tilesmith.api import linear, matmul, pack
from tilesmith.core.errors import ColdCaptureError, CompilationError, DriverError, EmulationError, UnavailableError
from tilesmith.core.packed import Packed
from tilesmith.emulator import emulate
from tilesmith.explain import Explanation
from tilesmith.inductor import hook
from tilesmith.override import Stat, Stats, disable, enable, override, stats
from tilesmith.torch_ops import distributed

hook.attach()

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
