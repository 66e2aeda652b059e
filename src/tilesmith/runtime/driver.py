"""The CUDA driver: loading a cubin, recording launches (runtime/launches.py). No other file imports its bindings."""

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from tilesmith.core.errors import DriverError, UnavailableError
from tilesmith.core.packages import install_command

_BINDINGS: Final = "Tilesmith needs the Python bindings of the CUDA driver ({reason}). Install them with: {command}"
_DRIVER: Final = "Tilesmith needs the CUDA driver ({reason}). Install an NVIDIA driver for CUDA 13."


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded into the context of one GPU."""

    handle: Any  # CUfunction
    library: Any  # CUlibrary: it must outlive the function


class LaunchGraph:
    """Launches with their buffers, one after the other, as a CUDA graph: for the host they are one launch.

    One thread makes them at a time (runtime/graph_replay.py).
    """

    __slots__ = ("__weakref__", "_destroy", "_handle", "_launch", "used")

    def __init__(
        self, launch: Callable[[int, int, tuple[int, ...]], None], device_index: int, buffers: tuple[int, ...]
    ) -> None:
        """`launch`: makes the launches, on a stream of the GPU with these buffers."""
        driver = bindings()
        self._launch = raw("cuGraphLaunch", POINTER, POINTER)
        check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
        # Nothing here concerns a capture that another thread is at.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        previous = check(driver, *driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            stream = _recording_stream(device_index)
            check(driver, *driver.cuStreamBeginCapture(stream, relaxed))
            try:
                launch(int(stream), device_index, buffers)
            finally:
                graph = check(driver, *driver.cuStreamEndCapture(stream))
            executable = check(driver, *driver.cuGraphInstantiate(graph, 0))
            check(driver, *driver.cuGraphDestroy(graph))
        finally:
            check(driver, *driver.cuThreadExchangeStreamCaptureMode(previous))
        self._handle = int(executable)
        self._destroy = weakref.finalize(self, _destroy_graph, executable, device_index)
        self._destroy.atexit = False  # type: ignore[misc]  # a process that ends gives everything back
        self.used = True  # from time to time asked for, and then reset

    def __call__(self, stream: int, device_index: int) -> None:
        """Launches on a stream of the GPU, which must not be capturing."""
        self.used = True
        status = self._launch(self._handle, stream)
        if status != 0:
            recover(status, device_index, self._launch, self._handle, stream)

    def destroy(self) -> None:
        """Gives it up now, and not when nobody has it any more. What is under way goes on."""
        self._destroy()


def _destroy_graph(executable: Any, device_index: int) -> None:
    """This may happen on any thread, with or without a context, during its capture too. If it fails, there is nothing
    left to do."""
    driver = bindings()
    driver.cuCtxPushCurrent(_primary_context(device_index))
    _, previous = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    driver.cuGraphExecDestroy(executable)
    driver.cuThreadExchangeStreamCaptureMode(previous)
    driver.cuCtxPopCurrent()


@cache
def _recording_stream(device_index: int) -> Any:
    """Where launches are captured, of the GPU whose context is current."""
    driver = bindings()
    return check(driver, *driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))


def recover(status: int, device_index: int, launch: Any, *arguments: int) -> None:
    """After a launch that failed: raises, unless all that was missing is a context. A thread that has made no CUDA
    call yet has none."""
    driver = bindings()
    if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
        status = launch(*arguments)
    check(driver, driver.CUresult(status))


POINTER: Final = ctypes.c_void_p


@cache
def raw(name: str, *arguments: Any) -> Any:
    """A function of the driver itself, by the types of its arguments, which lie ready: its bindings convert them, and
    what it returns, for every call."""
    function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function


def load(cubin: bytes, entry: str, shared_bytes: int, device_index: int) -> Function:
    """Loads a cubin's kernel into the GPU's primary context, which is torch's."""
    driver = bindings()
    check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
    library = check(driver, *driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
    kernel = check(driver, *driver.cuLibraryGetKernel(library, entry.encode()))
    function = check(driver, *driver.cuKernelGetFunction(kernel))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver, *driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    # Lazy loading would otherwise wait for the first launch, which may be inside a graph's capture.
    check(driver, *driver.cuFuncLoad(function))
    return Function(function, library)


def version() -> tuple[int, int]:
    """The newest CUDA release that the installed driver supports. It may be there without a GPU."""
    driver = _module()
    try:
        number = check(driver, *driver.cuDriverGetVersion())
    except RuntimeError as error:
        raise UnavailableError(_DRIVER.format(reason=error)) from error
    return number // 1000, number % 1000 // 10


@cache
def _primary_context(device_index: int) -> Any:
    driver = bindings()
    device = check(driver, *driver.cuDeviceGet(device_index))
    return check(driver, *driver.cuDevicePrimaryCtxRetain(device))


@cache
def bindings() -> ModuleType:
    driver = _module()
    try:
        check(driver, *driver.cuInit(0))
    except RuntimeError as error:
        raise UnavailableError(_DRIVER.format(reason=error)) from error
    return driver


def _module() -> ModuleType:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        command = install_command("cuda-bindings")
        raise UnavailableError(_BINDINGS.format(reason=error, command=command)) from error
    return driver  # type: ignore[no-any-return]


def check(driver: ModuleType, status: Any, value: Any = None) -> Any:
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"the CUDA driver answered {status.name}")
    return value
