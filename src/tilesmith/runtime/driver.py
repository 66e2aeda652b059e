"""The CUDA driver: loading a cubin and launching its kernel. No other file calls it."""

import ctypes
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

import torch

from tilesmith.core.errors import DriverError, UnavailableError
from tilesmith.core.params import BUFFERS, MAX_BATCH_DIMS, TensorMap
from tilesmith.core.plan import KernelLaunch
from tilesmith.core.problem import ALIGNMENT
from tilesmith.core.recent import Recent

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

    __slots__ = (
        "_addresses",
        "_arguments",
        "_attributes",
        "_buffers",
        "_call",
        "_config",
        "_function",
        "_launch",
        "_pointers",
        "_tensor_maps",
    )

    def __init__(self, function: Function, launch: KernelLaunch) -> None:
        self._function = function
        self._launch = _raw("cuLaunchKernelEx", _POINTER, _POINTER, _POINTER, _POINTER)
        self._buffers: tuple[int, ...] = ()  # that the arguments have
        arguments = launch.parameters.packed()
        self._arguments = ctypes.create_string_buffer(len(arguments) + _TENSOR_MAP_ALIGNMENT)
        begin = ctypes.addressof(self._arguments)
        first = -begin % _TENSOR_MAP_ALIGNMENT
        ctypes.memmove(begin + first, arguments, len(arguments))
        self._pointers = _POINTER(begin + first)
        self._addresses = tuple(
            [(first + at, _PLACES[each.buffer], each.offset) for at, each in launch.parameters.addresses()]
        )
        self._tensor_maps = tuple(
            [_TensorMapSlot(each, begin + first + at) for at, each in launch.parameters.tensor_maps()]
        )
        self._attributes = _attributes(launch.cluster, launch.awaits_predecessor)
        count = len(self._attributes) // _ATTRIBUTE.size
        self._config = ctypes.create_string_buffer(_CONFIG.size)
        _CONFIG.pack_into(
            *(self._config, 0),
            *(*launch.grid, launch.kernel.threads, 1, 1, launch.kernel.shared_bytes),
            *(0, ctypes.addressof(self._attributes), count),
        )
        self._call = (
            *(ctypes.addressof(self._config), int(function.handle)),
            *(ctypes.addressof(self._pointers), 0),
        )

    def __call__(self, stream: int, device_index: int, buffers: tuple[int, ...]) -> None:
        """Launches on a stream of the GPU, with the addresses of BUFFERS."""
        if buffers != self._buffers:
            for position, buffer, offset in self._addresses:
                _pack_address(self._arguments, position, buffers[buffer] + offset)
            for slot in self._tensor_maps:
                if slot.address != buffers[slot.buffer]:
                    slot.point_to(buffers[slot.buffer])
            self._buffers = buffers
        _pack_address(self._config, _STREAM_OFFSET, stream)
        status = self._launch(*self._call)
        if status != 0:
            _recover(status, device_index, self._launch, *self._call)


class LaunchGraph:
    """Launches with their buffers, one after the other, as a CUDA graph: for the host they are one launch.

    One thread makes them at a time (runtime/graph_replay.py).
    """

    __slots__ = ("__weakref__", "_destroy", "_handle", "_launch", "used")

    def __init__(self, launches: Sequence[Launch], device_index: int, buffers: tuple[int, ...]) -> None:
        driver = _driver()
        self._launch = _raw("cuGraphLaunch", _POINTER, _POINTER)
        _check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
        # Nothing here concerns a capture that another thread is at.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        previous = _check(driver, *driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            stream = _recording_stream(device_index)
            _check(driver, *driver.cuStreamBeginCapture(stream, relaxed))
            try:
                for launch in launches:
                    launch(int(stream), device_index, buffers)
            finally:
                graph = _check(driver, *driver.cuStreamEndCapture(stream))
            executable = _check(driver, *driver.cuGraphInstantiate(graph, 0))
            _check(driver, *driver.cuGraphDestroy(graph))
        finally:
            _check(driver, *driver.cuThreadExchangeStreamCaptureMode(previous))
        self._handle = int(executable)
        self._destroy = weakref.finalize(self, _destroy_graph, executable, device_index)
        self._destroy.atexit = False  # type: ignore[misc]  # a process that ends gives everything back
        self.used = True  # from time to time asked for, and then reset

    def __call__(self, stream: int, device_index: int) -> None:
        """Launches on a stream of the GPU, which must not be capturing."""
        self.used = True
        status = self._launch(self._handle, stream)
        if status != 0:
            _recover(status, device_index, self._launch, self._handle, stream)

    def destroy(self) -> None:
        """Gives it up now, and not when nobody has it any more. What is under way goes on."""
        self._destroy()


def _destroy_graph(executable: Any, device_index: int) -> None:
    """This may happen on any thread, with or without a context, during its capture too. If it fails, there is nothing
    left to do."""
    driver = _driver()
    driver.cuCtxPushCurrent(_primary_context(device_index))
    _, previous = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    driver.cuGraphExecDestroy(executable)
    driver.cuThreadExchangeStreamCaptureMode(previous)
    driver.cuCtxPopCurrent()


@cache
def _recording_stream(device_index: int) -> Any:
    """Where launches are captured, of the GPU whose context is current."""
    driver = _driver()
    return _check(driver, *driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))


def _recover(status: int, device_index: int, launch: Any, *arguments: int) -> None:
    """After a launch that failed: raises, unless all that was missing is a context. A thread that has made no CUDA
    call yet has none."""
    driver = _driver()
    if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        _check(driver, *driver.cuCtxSetCurrent(_primary_context(device_index)))
        status = launch(*arguments)
    _check(driver, driver.CUresult(status))


# CUlaunchConfig: the grid, the block, the bytes of shared memory; the stream; the attributes and their count. And
# CUlaunchAttribute: its name, and up to 64 bytes.
_CONFIG: Final = struct.Struct("<7I4xqqI4x")
_STREAM_OFFSET: Final = 32
_ATTRIBUTE: Final = struct.Struct("<I4x64s")


@cache
def _attributes(cluster: int, awaits_predecessor: bool) -> "ctypes.Array[ctypes.c_char]":
    """The attributes of launches, one behind the other, in memory that stays."""
    names = _driver().CUlaunchAttributeID
    values = {}
    if cluster > 1:
        values[names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION] = struct.pack("<3I", cluster, 1, 1)
    if awaits_predecessor:
        values[names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION] = struct.pack("<i", 1)
    packed = b"".join(_ATTRIBUTE.pack(int(name), value) for name, value in values.items())
    return ctypes.create_string_buffer(packed, len(packed))


_POINTER: Final = ctypes.c_void_p


@cache
def _raw(name: str, *arguments: Any) -> Any:
    """A function of the driver itself, by the types of its arguments, which lie ready: its bindings convert them, and
    what it returns, for every call."""
    function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function


_pack_address = struct.Struct("<q").pack_into

_PLACES: Final = {buffer: place for place, buffer in enumerate(BUFFERS)}
_TENSOR_MAP_BYTES: Final = 128
_TENSOR_MAP_ALIGNMENT: Final = 64
_ENCODED_MAPS: Final = 128  # of a slot, and up to twice as many: a program's tensors come back to the same addresses


class _TensorMapSlot:
    """The place of a tensor map in a launch's arguments. Encoding takes microseconds, so it is done once an address;
    the table of those is made when there is a second one."""

    __slots__ = ("_encoded", "_tensor_map", "_where", "address", "buffer")

    def __init__(self, tensor_map: TensorMap, where: int) -> None:
        self._tensor_map = tensor_map
        self._where = where
        self._encoded: Recent[int, bytes] | None = None
        self.buffer = _PLACES[tensor_map.buffer]
        self.address = -1  # what the map in the arguments points to

    def point_to(self, address: int) -> None:
        known = self._encoded
        if known is None and self.address >= 0:
            known = self._encoded = Recent(_ENCODED_MAPS)
            known[self.address] = ctypes.string_at(self._where, _TENSOR_MAP_BYTES)
        encoded = known and (known.young.get(address) or known.get(address))
        if encoded:
            ctypes.memmove(self._where, encoded, _TENSOR_MAP_BYTES)
        else:
            _encode(self._tensor_map, address, self._where)
            if known is not None:
                known[address] = ctypes.string_at(self._where, _TENSOR_MAP_BYTES)
        self.address = address


def _encode(tensor_map: TensorMap, address: int, where: int) -> None:
    """Writes the map of a tensor whose buffer is at `address`, as TMA reads it."""
    rank = len(tensor_map.sizes)
    dtype, swizzle = _names(tensor_map.dtype, tensor_map.line_bytes)
    status = _encode_tiled()(
        *(where, dtype, rank, address + tensor_map.offset),
        _LONGS[rank].pack(*tensor_map.sizes),
        _LONGS[rank - 1].pack(*tensor_map.strides),
        _INTS[rank].pack(*tensor_map.box),
        *(_EVERY_ELEMENT, _NOT_INTERLEAVED, swizzle, _NO_L2_PROMOTION, _ZEROS_OUTSIDE),
    )
    if status != 0:
        driver = _driver()
        _check(driver, driver.CUresult(status))


_RANKS: Final = range(MAX_BATCH_DIMS + 3)
_LONGS: Final = [struct.Struct(f"{rank}Q") for rank in _RANKS]
_INTS: Final = [struct.Struct(f"{rank}I") for rank in _RANKS]
_EVERY_ELEMENT: Final = _INTS[-1].pack(*[1] * _RANKS[-1])  # the steps inside of a box
_NOT_INTERLEAVED: Final = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
_NO_L2_PROMOTION: Final = 0  # CU_TENSOR_MAP_L2_PROMOTION_NONE
_ZEROS_OUTSIDE: Final = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE


@cache
def _encode_tiled() -> Any:
    enum, rank, tensor = ctypes.c_int, ctypes.c_uint, (_POINTER,) * 5
    return _raw("cuTensorMapEncodeTiled", _POINTER, enum, rank, *tensor, enum, enum, enum, enum)


@cache
def _names(dtype: torch.dtype, line_bytes: int) -> tuple[int, int]:
    """What the driver calls a type, and the swizzle of lines of so many bytes."""
    dtypes, swizzles = _driver().CUtensorMapDataType, _driver().CUtensorMapSwizzle
    name = str(dtype).removeprefix("torch.").upper()
    width = "NONE" if line_bytes == ALIGNMENT else f"{line_bytes}B"
    dtype_name, swizzle_name = f"CU_TENSOR_MAP_DATA_TYPE_{name}", f"CU_TENSOR_MAP_SWIZZLE_{width}"
    return int(getattr(dtypes, dtype_name)), int(getattr(swizzles, swizzle_name))


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
