"""`compile(source, arch) -> cubin`, by NVRTC. Needs no GPU, no nvcc and no host compiler."""

import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from tilesmith.core.errors import CompilationError, UnavailableError
from tilesmith.core.packages import install_command
from tilesmith.runtime.source import headers

OPTIONS: Final[tuple[str, ...]] = ("--std=c++17", "--dopt=on")

_INSTALL: Final = "Tilesmith compiles its kernels with NVRTC, which is not here ({reason}). Install it with: {command}"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes of the machine."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def compile(source: str, arch: str) -> bytes:
    """The cubin of a translation unit for one architecture, e.g. "sm_90a"."""
    return _compile(source, arch)[0]


def resources(source: str, arch: str) -> Resources:
    """What ptxas reports of the one kernel in a translation unit."""
    _, log = _compile(source, arch, "--ptxas-options=-v")
    used = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or stack is None:
        raise CompilationError(f"ptxas did not report the kernel's resources:\n{log}")
    return Resources(int(used[1]), *map(int, stack.groups()))


@cache
def version() -> tuple[int, int]:
    """NVRTC's own version."""
    nvrtc = _nvrtc()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings are here, the library is not
        raise _unavailable(error) from error
    _check(nvrtc, status)
    return major, minor


def _compile(source: str, arch: str, *more_options: str) -> tuple[bytes, str]:
    version()  # a missing library shows here, with what to do about it
    nvrtc = _nvrtc()
    names, texts = headers().keys(), headers().values()
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        b"tilesmith.cu",
        len(names),
        [text.encode() for text in texts],
        [name.encode() for name in names],
    )
    _check(nvrtc, status)
    try:
        options = [f"--gpu-architecture={arch}", *OPTIONS, *more_options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _read(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilationError(f"NVRTC {version()} failed for {arch} ({status.name}):\n{log}\n{source}")
        return _read(nvrtc, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@cache
def _nvrtc() -> ModuleType:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise _unavailable(error) from error
    return nvrtc  # type: ignore[no-any-return]


def _unavailable(reason: Exception) -> UnavailableError:
    command = install_command("cuda-bindings", "nvidia-cuda-nvrtc")
    return UnavailableError(_INSTALL.format(reason=reason, command=command))


def _read(nvrtc: ModuleType, program: Any, get_size: Any, get: Any) -> bytes:
    status, size = get_size(program)
    _check(nvrtc, status)
    buffer = bytearray(size)
    (status,) = get(program, buffer)
    _check(nvrtc, status)
    return bytes(buffer)


def _check(nvrtc: ModuleType, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilationError(f"NVRTC answered {status.name}")
