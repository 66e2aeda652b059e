"""A CPU stand-in for the GPU: the same kernels, run as plain C++."""

from tilesmith.emulator.emulation import active, emulate
from tilesmith.emulator.run import run

__all__ = ["active", "emulate", "run"]
