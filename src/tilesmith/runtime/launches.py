"""The launches of a plan, as the driver takes them: configurations, arguments and tensor maps."""

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from tilesmith.core.params import BUFFERS, MAX_BATCH_DIMS, TensorMap
from tilesmith.core.plan import KernelLaunch
from tilesmith.core.problem import ALIGNMENT
from tilesmith.core.recent import Recent
from tilesmith.runtime import driver


class Launches:
    """The launches of a plan, one after the other, ready to go.

    Their configurations and arguments lie in one piece of memory, which is this object's own, so one thread uses it at
    a time. It keeps nothing of the plan but numbers: programs have thousands of these, and Python's garbage collector
    looks at every container.
    """

    __slots__ = (
        *("_addresses", "_allocated", "_buffers", "_calls", "_encoded", "_launch", "_maps", "_memory", "_pointed"),
        "_stream",
    )

    def __init__(self, functions: Sequence[driver.Function], launches: Sequence[KernelLaunch]) -> None:
        filled = [launch.parameters.filled() for launch in launches]
        sizes = [-(-layout.packer.size // _TENSOR_MAP_ALIGNMENT) * _TENSOR_MAP_ALIGNMENT for layout, _ in filled]
        config, position = 0, len(launches) * _CONFIG.size  # the configurations come first
        self._reserve(position + sum(sizes))
        memory, begin, places = self._memory, ctypes.addressof(self._memory), _PLACES
        addresses, calls, maps = list[int](), list[tuple[int, int, int, int]](), list[_MapSlot]()
        for function, launch, (layout, values), size in zip(functions, launches, filled, sizes, strict=True):
            layout.packer.pack_into(memory, position, *layout.numbers(values))
            for at, address in zip(layout.address_positions, layout.addresses(values), strict=True):
                if address is not None:
                    buffer, offset = address
                    addresses += ((position + at) // _WORD, places[buffer], offset)
            for at, tensor_map in zip(layout.map_positions, layout.maps(values), strict=True):
                if tensor_map is not None:
                    maps.append(_MapSlot.of(tensor_map, position + at))
            kernel, _, grid, cluster, awaits_predecessor, _ = launch
            _CONFIG.pack_into(
                *(memory, config, *grid, kernel.threads, 1, 1, kernel.shared_bytes, 0),
                *(*_attributes(cluster, awaits_predecessor), begin + position),
            )
            calls.append((begin + config, int(function.handle), begin + config + _ARGUMENTS_OFFSET, 0))
            config, position = config + _CONFIG.size, position + size
        self._addresses, self._calls, self._maps = tuple(addresses), tuple(calls), tuple(maps)
        self._forget()

    def copy(self) -> "Launches":
        """The same launches with memory of their own. Another thread may use these meanwhile: all that it changes is
        written anew."""
        new = object.__new__(Launches)
        new._reserve(ctypes.sizeof(self._memory))
        begin, moved = ctypes.addressof(new._memory), ctypes.addressof(new._memory) - ctypes.addressof(self._memory)
        ctypes.memmove(begin, self._memory, ctypes.sizeof(self._memory))
        calls = [(config + moved, function, at + moved, 0) for config, function, at, _ in self._calls]
        for _, _, at, _ in calls:
            new._memory[(at - begin) // _WORD] += moved
        new._addresses, new._calls, new._maps = self._addresses, tuple(calls), self._maps
        new._forget()
        return new

    def _reserve(self, size_bytes: int) -> None:
        self._allocated = _array(size_bytes + _TENSOR_MAP_ALIGNMENT)()
        begin = ctypes.addressof(self._allocated)
        self._memory = _array(size_bytes).from_address(begin + -begin % _TENSOR_MAP_ALIGNMENT)

    def _forget(self) -> None:
        """Nothing of what comes with a call is in the memory, as far as we know."""
        self._launch = driver.raw("cuLaunchKernelEx", driver.POINTER, driver.POINTER, driver.POINTER, driver.POINTER)
        self._buffers: tuple[int, ...] = ()
        self._stream = -1
        self._pointed = [-1] * len(self._maps)  # the addresses of the tensor maps' buffers
        self._encoded: Recent[tuple[int, int], bytes] | None = None

    def __call__(self, stream: int, device_index: int, buffers: tuple[int, ...]) -> None:
        """Launches on a stream of the GPU, with the addresses of BUFFERS."""
        if buffers != self._buffers:
            self._point_to(buffers)
        if stream != self._stream:
            for i in range(len(self._calls)):
                self._memory[(i * _CONFIG.size + _STREAM_OFFSET) // _WORD] = stream
            self._stream = stream
        launch = self._launch
        for call in self._calls:
            status = launch(*call)
            if status != 0:
                driver.recover(status, device_index, launch, *call)

    def _point_to(self, buffers: tuple[int, ...]) -> None:
        memory = self._memory
        each = iter(self._addresses)  # three by three: one container, where there would be dozens
        for word, buffer, offset in zip(each, each, each, strict=True):
            memory[word] = buffers[buffer] + offset
        pointed = self._pointed
        for i, slot in enumerate(self._maps):
            if pointed[i] != (address := buffers[slot.buffer]):
                self._write_map(i, slot, address)
                pointed[i] = address
        self._buffers = buffers

    def _write_map(self, index: int, slot: "_MapSlot", address: int) -> None:
        """Encoding takes microseconds, so it is done once an address. The table of those is made when there is a second
        one."""
        known, begin = self._encoded, ctypes.addressof(self._memory)
        if known is None and self._pointed[index] >= 0:
            known = self._encoded = Recent(_ENCODED_MAPS * len(self._maps))
            for i, each in enumerate(self._maps):
                known[i, self._pointed[i]] = ctypes.string_at(begin + each.position, _TENSOR_MAP_BYTES)
        where = begin + slot.position
        encoded = known and known.get((index, address))
        if encoded:
            ctypes.memmove(where, encoded, _TENSOR_MAP_BYTES)
        else:
            slot.encode(address, where)
            if known is not None:
                known[index, address] = ctypes.string_at(where, _TENSOR_MAP_BYTES)


@cache
def _array(size_bytes: int) -> type["ctypes.Array[ctypes.c_int64]"]:
    return ctypes.c_int64 * (size_bytes // _WORD)


# CUlaunchConfig: the grid, the block, the bytes of shared memory; the stream; the attributes and their count; and after
# it, for us, the address of the arguments. CUlaunchAttribute: its name, and up to 64 bytes.
_CONFIG: Final = struct.Struct("<7I4xqqI4xq")
_STREAM_OFFSET: Final = 32
_WORD: Final = 8  # bytes: of an address
_ARGUMENTS_OFFSET: Final = _CONFIG.size - _WORD
_ATTRIBUTE: Final = struct.Struct("<I4x64s")


@cache
def _attributes(cluster: int, awaits_predecessor: bool) -> tuple[int, int]:
    """The attributes of launches, one behind the other: where they are, and how many."""
    names = driver.bindings().CUlaunchAttributeID
    values = {}
    if cluster > 1:
        values[names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION] = struct.pack("<3I", cluster, 1, 1)
    if awaits_predecessor:
        values[names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION] = struct.pack("<i", 1)
    packed = b"".join(_ATTRIBUTE.pack(int(name), value) for name, value in values.items())
    memory = ctypes.create_string_buffer(packed, len(packed))
    _attributes_memory.append(memory)
    return ctypes.addressof(memory), len(values)


_attributes_memory: Final[list[Any]] = []  # it stays


_PLACES: Final = {buffer: place for place, buffer in enumerate(BUFFERS)}
_TENSOR_MAP_BYTES: Final = 128
_TENSOR_MAP_ALIGNMENT: Final = 64
_ENCODED_MAPS: Final = 128  # of a slot, and up to twice as many: a program's tensors come back to the same addresses


class _MapSlot(NamedTuple):
    """The place of a tensor map in the memory of launches, and all that the driver is told to encode it there."""

    position: int
    buffer: int  # its place among BUFFERS
    offset: int
    dtype: int
    sizes: bytes
    strides: bytes
    box: bytes
    swizzle: int

    @classmethod
    def of(cls, tensor_map: TensorMap, position: int) -> "_MapSlot":
        buffer, offset, dtype, sizes, strides, box, line_bytes, rounds_to_tf32 = tensor_map
        name, swizzle = _names(dtype, line_bytes, rounds_to_tf32)
        rank = len(sizes)
        packed = _LONGS[rank].pack(*sizes), _LONGS[rank - 1].pack(*strides), _INTS[rank].pack(*box)
        return cls(position, _PLACES[buffer], offset, name, *packed, swizzle)

    def encode(self, address: int, where: int) -> None:
        """Writes the map of a tensor whose buffer is at `address`, as TMA reads it."""
        status = _encode_tiled()(
            *(where, self.dtype, len(self.box) // 4, address + self.offset, self.sizes, self.strides, self.box),
            *(_EVERY_ELEMENT, _NOT_INTERLEAVED, self.swizzle, _NO_L2_PROMOTION, _ZEROS_OUTSIDE),
        )
        if status != 0:
            bindings = driver.bindings()
            driver.check(bindings, bindings.CUresult(status))


_RANKS: Final = range(MAX_BATCH_DIMS + 3)
_LONGS: Final = [struct.Struct(f"{rank}Q") for rank in _RANKS]
_INTS: Final = [struct.Struct(f"{rank}I") for rank in _RANKS]
_EVERY_ELEMENT: Final = _INTS[-1].pack(*[1] * _RANKS[-1])  # the steps inside of a box
_NOT_INTERLEAVED: Final = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
_NO_L2_PROMOTION: Final = 0  # CU_TENSOR_MAP_L2_PROMOTION_NONE
_ZEROS_OUTSIDE: Final = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE


@cache
def _encode_tiled() -> Any:
    enum, rank, tensor = ctypes.c_int, ctypes.c_uint, (driver.POINTER,) * 5
    return driver.raw("cuTensorMapEncodeTiled", driver.POINTER, enum, rank, *tensor, enum, enum, enum, enum)


@cache
def _names(dtype: torch.dtype, line_bytes: int, rounds_to_tf32: bool) -> tuple[int, int]:
    """What the driver calls a type, and the swizzle of lines of so many bytes."""
    dtypes, swizzles = driver.bindings().CUtensorMapDataType, driver.bindings().CUtensorMapSwizzle
    name = "TFLOAT32" if rounds_to_tf32 else str(dtype).removeprefix("torch.").upper()
    width = "NONE" if line_bytes == ALIGNMENT else f"{line_bytes}B"
    dtype_name, swizzle_name = f"CU_TENSOR_MAP_DATA_TYPE_{name}", f"CU_TENSOR_MAP_SWIZZLE_{width}"
    return int(getattr(dtypes, dtype_name)), int(getattr(swizzles, swizzle_name))
