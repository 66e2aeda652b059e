"""Clocks, power and temperature of a GPU around a measurement."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.bench.results import State
from tilesmith.core.nvml import Gpu, NvmlError


@dataclass(slots=True)
class Watch:
    """What was seen; None where NVML does not tell."""

    state: State | None = None


@contextlib.contextmanager
def watching(index: int) -> Iterator[Watch]:
    """Reads before and after: `with watching(0) as watch: ...`, then `watch.state`."""
    watch = Watch()
    try:
        gpu = Gpu(index)
        before = gpu.sm_mhz
    except NvmlError:
        yield watch
        return
    yield watch
    with contextlib.suppress(NvmlError):
        watch.state = State(
            sm_mhz=(before, gpu.sm_mhz),
            power_watts=gpu.power_watts,
            temperature_celsius=gpu.temperature_celsius,
            throttled=gpu.throttled,
        )
