"""Clocks, power and temperature of a GPU around a measurement."""

import contextlib
from collections.abc import Callable

from tilesmith.bench.results import State
from tilesmith.core.nvml import Gpu, NvmlError


def watched(index: int) -> Callable[[], State | None]:
    """Reads the clocks now. Call what comes after the measurement, for all that was seen; None where NVML does not
    tell."""
    try:
        gpu = Gpu(index)
        before = gpu.sm_mhz
    except NvmlError:
        return lambda: None

    def state() -> State | None:
        with contextlib.suppress(NvmlError):
            return State(
                sm_mhz=(before, gpu.sm_mhz),
                power_watts=gpu.power_watts,
                temperature_celsius=gpu.temperature_celsius,
                throttled=gpu.throttled,
            )
        return None

    return state
