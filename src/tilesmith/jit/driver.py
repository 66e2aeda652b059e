"""The CUDA driver: loading a cubin and launching its kernel. No other file calls it."""

import ctypes
import struct
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from tilesmith.errors import DriverError, UnavailableError

_INSTALL: Final = (
    "Tilesmith needs the CUDA driver and its Python bindings ({reason}). Install an NVIDIA driver for CUDA 13, and: "
    'pip install "cuda-bindings>=13,<14"'
)


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded into the context of one GPU."""

    handle: Any  # CUfunction
    library: Any  # CUlibrary: it must outlive the function


class Launch:
    """One kernel, one grid, and one buffer for its arguments, ready to go.

    The buffer is this object's own, so one thread uses it at a time.
    """

    __slots__ = ("_arguments", "_config", "_driver", "_function", "_pointers", "_pointers_address")

    def __init__(
        self, function: Function, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: bytes
    ) -> None:
        self._driver = driver = _driver()
        self._function = function
        self._arguments = ctypes.create_string_buffer(arguments, len(arguments))
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._arguments))
        self._pointers_address = ctypes.addressof(self._pointers)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        self._config = config

    def __call__(self, stream: int, device_index: int, *addresses: int) -> None:
        """Launches on a stream of the GPU, with the addresses of the plan's operands."""
        _pack_addresses(self._arguments, 0, *addresses)
        self._config.hStream = stream
        status = self._launch()
        if status != 0:
            driver = self._driver
            if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
                # A thread that has made no CUDA call yet has no current context.
                _check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
                status = self._launch()
            _check(driver, status)

    def _launch(self) -> Any:
        return self._driver.cuLaunchKernelEx(self._config, self._function.handle, self._pointers_address, 0)[0]


_pack_addresses = struct.Struct("<3q").pack_into


def load(cubin: bytes, entry: str, shared_bytes: int, device_index: int) -> Function:
    """Loads a cubin's kernel into the GPU's primary context, which is torch's."""
    driver = _driver()
    _check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
    library = _check(driver, *driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
    kernel = _check(driver, *driver.cuLibraryGetKernel(library, entry.encode()))
    function = _check(driver, *driver.cuKernelGetFunction(kernel))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver, *driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    # Lazy loading would otherwise wait for the first launch, which may be inside a graph's capture.
    _check(driver, *driver.cuFuncLoad(function))
    return Function(function, library)


def version() -> tuple[int, int]:
    """The newest CUDA release that the installed driver supports."""
    driver = _driver()
    number = _check(driver, *driver.cuDriverGetVersion())
    return number // 1000, number % 1000 // 10


@cache
def _primary_context(device_index: int) -> Any:
    driver = _driver()
    device = _check(driver, *driver.cuDeviceGet(device_index))
    return _check(driver, *driver.cuDevicePrimaryCtxRetain(device))


@cache
def _driver() -> ModuleType:
    try:
        from cuda.bindings import driver

        _check(driver, *driver.cuInit(0))
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(_INSTALL.format(reason=error)) from error
    return driver  # type: ignore[no-any-return]


def _check(driver: ModuleType, status: Any, value: Any = None) -> Any:
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"the CUDA driver answered {status.name}")
    return value
