"""Launches of emulated kernels, on memory of this process."""

import ctypes
import re
import struct
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tilesmith.core.errors import EmulationError
from tilesmith.core.params import Buffer
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.emulator import build, tensor_map
from tilesmith.emulator.lines import line_at

_ERROR_BYTES: Final = 64 * 1024

_gpu = threading.Lock()  # there is one, and one launch at a time


@dataclass(frozen=True, slots=True)
class Memory:
    """What a kernel may touch of a buffer. The addresses of a launch count from `address`."""

    address: int
    begin: int
    bytes: int


class _Buffer(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("begin", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    """As in cxx/machine/launch.h."""

    _fields_ = (
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("awaits_predecessor", ctypes.c_uint32),
        ("has_products", ctypes.c_uint32),
        ("is_random", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_uint64),
        ("bank_conflicts", ctypes.POINTER(ctypes.c_uint64)),
    )


class Function:
    """A kernel's library, loaded into this process."""

    def __init__(self, kernel: Kernel, arch: str, replaced: Mapping[str, str] | None = None) -> None:
        self._kernel = kernel
        self._library = build.library(kernel, arch, replaced)
        # A file with a name of its own, since the loader knows libraries by name. It needs it no longer than this.
        with tempfile.NamedTemporaryFile(prefix="tilesmith-", suffix=".so") as file:
            file.write(self._library)
            file.flush()
            self._launch: Any = ctypes.CDLL(file.name).tilesmith_launch

    def __call__(self, launch: KernelLaunch, buffers: Mapping[Buffer, Memory], seed: int | None) -> int:
        """Runs a launch. With a seed its threads run in an order of their own, and asynchronous work at any time.
        Returns the bank conflicts of the matrices that warps load and store together."""
        arguments = _arguments(launch, buffers)
        parameters = _aligned(arguments)
        memory = (_Buffer * len(buffers))(*(_Buffer(name.encode(), m.begin, m.bytes) for name, m in buffers.items()))
        error, bank_conflicts = ctypes.create_string_buffer(_ERROR_BYTES), ctypes.c_uint64(0)
        launched = _Launch(
            parameters=ctypes.addressof(parameters),
            parameter_bytes=len(arguments),
            buffers=memory,
            buffer_count=len(buffers),
            grid=launch.grid,
            threads=launch.kernel.threads,
            cluster=launch.cluster,
            awaits_predecessor=launch.awaits_predecessor,
            has_products=launch.kernel.wgmma is not None,
            is_random=seed is not None,
            seed=seed or 0,
            error=ctypes.cast(error, ctypes.c_char_p),
            error_bytes=_ERROR_BYTES,
            bank_conflicts=ctypes.pointer(bank_conflicts),
        )
        with _gpu:
            failed = self._launch(ctypes.byref(launched))
        if failed:
            message = re.sub(
                r"@\{([0-9a-f]+)\}", lambda found: line_at(self._library, int(found[1], 16)), error.value.decode()
            )
            raise EmulationError(f"{self._kernel.entry}: {message}")
        return bank_conflicts.value


@cache
def function(kernel: Kernel, arch: str) -> Function:
    """The kernel as the package has it, loaded once."""
    return Function(kernel, arch)


def _arguments(launch: KernelLaunch, buffers: Mapping[Buffer, Memory]) -> bytes:
    arguments = bytearray(launch.parameters.packed())
    for position, address in launch.parameters.addresses():
        base = buffers[address.buffer].address if address.buffer in buffers else 0
        struct.pack_into("<q", arguments, position, base + address.offset)
    for position, each in launch.parameters.tensor_maps():
        encoded = tensor_map.encode(each, buffers[each.buffer].address)
        arguments[position : position + len(encoded)] = encoded
    return bytes(arguments)


def _aligned(content: bytes, alignment: int = 64) -> Any:
    """The bytes at an address that is a multiple of `alignment`."""
    storage = ctypes.create_string_buffer(len(content) + alignment)
    offset = -ctypes.addressof(storage) % alignment
    aligned = (ctypes.c_char * len(content)).from_buffer(storage, offset)
    aligned.raw = content
    return aligned
