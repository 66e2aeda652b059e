"""Kernels as shared libraries: the same sources, compiled by the system's C++ compiler, and linked to a machine that
stands for the GPU."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tilesmith.core import package
from tilesmith.core.errors import CompilationError, UnavailableError
from tilesmith.core.plan import Kernel
from tilesmith.runtime import cache as disk
from tilesmith.runtime import source

_MACHINES: Final = ("x86_64", "aarch64")
_COMPILERS: Final = ("g++", "clang++", "c++")
# Nothing is contracted to a multiply-add but what the kernels write as one. NVRTC contracts more; of what our kernels
# compute, that can change only the comparison in range_check.cuh, by a rounding.
_COMMON: Final = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing")
_MACHINE: Final = ("-O2",)
# The hooks of the thread sanitizer see every load and store: the machine has its own. What would merge or reorder
# accesses is off, so that they are those of the source.
_KERNEL: Final = (
    *("-O1", "-g1", "-fsanitize=thread", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fno-tree-vectorize"),
    "-Wno-unknown-pragmas",
)
# clang leaves out the hook of a read before a write to the same place.
_KERNEL_BY_CLANG: Final = ("-mllvm", "-tsan-instrument-read-before-write=1")
# Both compilers call these for large structures, where the machine has to see them.
_HOOKED: Final = ("memcpy", "memmove", "memset")
_LINK: Final = ("-shared", "-Wl,--build-id=none", "-Wl,-z,now")

Replacements = tuple[tuple[str, str], ...]  # CUDA files of the package, with another content


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of this machine."""

    path: str
    identity: str  # its version and target
    cpu_options: tuple[str, ...]


def library(kernel: Kernel, arch: str, replaced: Mapping[str, str] | None = None) -> bytes:
    """The shared library of a kernel, from the cache or compiled. `replaced` has CUDA files that are to be
    taken instead of the package's."""
    unit = _unit(kernel, arch)
    files = _files(tuple(sorted((replaced or {}).items())))
    return disk.kept(
        _key("kernel", unit, *_flat(files), *_KERNEL, *_KERNEL_BY_CLANG, *_HOOKED),
        disk.EMULATED,
        lambda: _library(unit, files),
        disk.About.of(kernel, arch),
    )


def _unit(kernel: Kernel, arch: str) -> str:
    """The translation unit of a kernel: as for the GPU, between what stands for its shared memory and its launch."""
    capability = int(arch.removeprefix("sm_").removesuffix("a"))
    return f"""#define __CUDA_ARCH__ {capability * 10}
namespace tilesmith {{
extern "C" {{
alignas(1024) thread_local unsigned char shared_bytes[{max(kernel.shared_bytes, 16)}];
}}
}}
{source.render(kernel, emulated=True)}
extern "C" __attribute__((no_sanitize("thread"))) void tilesmith_kernel(const void* parameters) {{
  tilesmith::{kernel.entry}(*static_cast<const plan::Parameters*>(parameters));
}}
extern "C" __attribute__((no_sanitize("thread"))) unsigned char* tilesmith_shared_bytes() {{
  return tilesmith::shared_bytes;
}}
"""


@cache
def compiler() -> Compiler:
    """The first C++ compiler on the path, or the one that `CXX` names."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        raise UnavailableError(
            f"the emulator runs on Linux on {' or '.join(_MACHINES)}, "
            f"and this is {platform.system()} on {platform.machine()}"
        )
    for name in filter(None, (os.environ.get("CXX"), *_COMPILERS)):
        path = shutil.which(name)
        if path is not None and shutil.which("objcopy") is not None:
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            return Compiler(path, f"{version.splitlines()[0]} {platform.machine()}", _cpu_options())
    raise UnavailableError(
        f"the emulator compiles kernels with one of {', '.join(_COMPILERS)} and with objcopy, and does not find both; "
        "install them (for example: apt-get install g++), or name a compiler in CXX"
    )


def _cpu_options() -> tuple[str, ...]:
    """Fused multiply-adds are in the hardware of most machines, and slow where they are not used."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return ()
    return ("-mavx2", "-mfma") if platform.machine() == "x86_64" and {"avx2", "fma"} <= set(flags) else ()


def _library(unit: str, files: Mapping[str, str]) -> bytes:
    machine = disk.kept(
        _key("machine", *_flat(_machine_files()), *_MACHINE), disk.EMULATED, _machine, disk.About("emulator")
    )
    with tempfile.TemporaryDirectory(prefix="tilesmith-") as name:
        folder = Path(name)
        _write(folder, files)
        (folder / "kernel.cpp").write_text(unit)
        (folder / "machine.o").write_bytes(machine)
        by_clang = _KERNEL_BY_CLANG if "clang" in compiler().identity else ()
        _compile(folder, "kernel.cpp", "-include", "prelude.h", *_KERNEL, *by_clang)
        renamed = (f"--redefine-sym={name}=__tsan_{name}" for name in _HOOKED)
        _run(folder, "objcopy", *renamed, "kernel.o")
        _run(folder, compiler().path, *_LINK, "kernel.o", "machine.o", "-lpthread", "-o", "kernel.so")
        return (folder / "kernel.so").read_bytes()


def _machine() -> bytes:
    with tempfile.TemporaryDirectory(prefix="tilesmith-") as name:
        folder = Path(name)
        _write(folder, _machine_files())
        _compile(folder, "emulator/machine/machine.cpp", *_MACHINE)
        return (folder / "machine.o").read_bytes()


def _compile(folder: Path, file: str, *options: str) -> None:
    names = ("-Iemulator", "-Icuda", "-I.", f"-ffile-prefix-map={folder}/=")
    every = (*_COMMON, *compiler().cpu_options, *names, *options)
    _run(folder, compiler().path, *every, "-c", file, "-o", f"{Path(file).stem}.o")


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompilationError(f"{' '.join(command)} failed:\n{done.stderr}")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@cache
def _files(replaced: Replacements) -> dict[str, str]:
    """What a kernel may include: the package's CUDA files, with the emulator's ptx folder in place of theirs."""
    headers = {name: text for name, text in source.headers().items() if not name.startswith("ptx/")}
    unknown = [name for name, _ in replaced if name not in headers]
    if unknown:
        raise ValueError(f"the emulator compiles no file {unknown[0]!r}")
    own = {**headers, **dict(replaced)}
    placed = {name if name.startswith("kernels/") else f"cuda/{name}": text for name, text in own.items()}
    return {**placed, **_machine_files()}


@cache
def _machine_files() -> dict[str, str]:
    folder = Path(str(package.files() / "emulator" / "cxx"))
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {f"emulator/{path.relative_to(folder).as_posix()}": path.read_text() for path in paths}


def _flat(files: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(part for item in files.items() for part in item)


def _key(*parts: str) -> str:
    everything = (*parts, *_COMMON, *_LINK, compiler().identity, *compiler().cpu_options)
    return hashlib.sha256("\0".join(everything).encode()).hexdigest()
