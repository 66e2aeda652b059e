"""What NVML, the driver's management library, tells of a GPU. No other file calls it."""

import ctypes
from functools import cache
from typing import Any, Final

import torch

_SM_CLOCK: Final = 1
_GPU_TEMPERATURE: Final = 0
_VERSION_BYTES: Final = 80
# Reasons for which clocks are held down. Being idle is none, nor are clocks that someone has set.
_REASONS: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature, by hardware",
    0x80: "power brake",
}


class NvmlError(Exception):
    """The library, or a function of it, is not there or does not do."""


class Gpu:
    """A GPU of this machine, by torch's index."""

    def __init__(self, index: int) -> None:
        # torch counts only the GPUs that it may see: so by the name that both know.
        properties: Any = torch.cuda.get_device_properties(index)
        self._handle = ctypes.c_void_p()
        _call("nvmlDeviceGetHandleByUUID", f"GPU-{properties.uuid}".encode(), ctypes.byref(self._handle))

    @property
    def sm_mhz(self) -> int:
        return self._number("nvmlDeviceGetClockInfo", _SM_CLOCK)

    @property
    def power_watts(self) -> float:
        return self._number("nvmlDeviceGetPowerUsage") / 1000

    @property
    def temperature_celsius(self) -> int:
        return self._number("nvmlDeviceGetTemperature", _GPU_TEMPERATURE)

    @property
    def throttled(self) -> tuple[str, ...]:
        """What holds the clocks down now."""
        return reasons(self._number("nvmlDeviceGetCurrentClocksThrottleReasons"))

    def _number(self, function: str, *arguments: int) -> int:
        value = ctypes.c_ulonglong()
        _call(function, self._handle, *arguments, ctypes.byref(value))
        return value.value


def reasons(mask: int) -> tuple[str, ...]:
    """The bits of NVML in words.

    >>> reasons(0x1), reasons(0x25)
    ((), ('power cap', 'temperature'))
    """
    return tuple(name for bit, name in _REASONS.items() if mask & bit)


def driver_version() -> str:
    """The driver's version; "unknown" where NVML does not tell."""
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    try:
        _call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_VERSION_BYTES))
    except NvmlError:
        return "unknown"
    return text.value.decode()


def _call(function: str, *arguments: Any) -> None:
    found = getattr(_library(), function, None)
    if found is None or found(*arguments) != 0:
        raise NvmlError(function)


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NvmlError(str(error)) from error
    if library.nvmlInit_v2() != 0:
        raise NvmlError("nvmlInit_v2")
    return library
