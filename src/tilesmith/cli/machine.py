"""What this machine has of what Tilesmith needs. Nothing that is missing makes it fail."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from tilesmith.core import cache_dir, device, packages
from tilesmith.core.errors import UnavailableError
from tilesmith.runtime import archive, cache, compiler, driver
from tilesmith.version import VERSION

NEEDED_CUDA: Final = 13  # the release that cubins and bindings are of
TORCH: Final = 'pip install --force-reinstall "torch>=2.11"'  # on Linux it has CUDA


@dataclass(frozen=True, slots=True)
class Part:
    """Something that Tilesmith needs: its version, or why it is missing and what to do."""

    version: str | None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `arch` is None if no kernel can be compiled for it, and `unsupported` says why."""

    index: int
    name: str
    capability: str
    arch: str | None
    unsupported: str | None
    sm_count: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """The compiled kernels on disk."""

    directory: str
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """Kernels that were compiled ahead."""

    path: str
    arch: str
    kernels: int
    bytes: int
    is_current: bool  # built of the sources that are installed; otherwise it is not used


@dataclass(frozen=True, slots=True)
class Info:
    """Everything that `tilesmith info` shows."""

    tilesmith: str
    python: str
    torch: str
    cuda_bindings: Part
    nvrtc: Part
    driver: Part
    gpus: tuple[Gpu, ...]
    no_gpu: str | None  # why `gpus` is empty and what to do
    cache: Cache
    archives: tuple[Archive, ...]

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those of the GPUs that are here and supported."""
        return tuple(dict.fromkeys(gpu.arch for gpu in self.gpus if gpu.arch is not None))

    def has_archive(self, arch: str) -> bool:
        """Whether there is an archive of this architecture that is used."""
        return any(each.arch == arch and each.is_current for each in self.archives)


def collect() -> Info:
    """What is on this machine."""
    found_driver = _driver()
    gpus, no_gpu = _gpus(found_driver)
    entries = list(cache.entries())
    return Info(
        tilesmith=VERSION,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda_bindings=_cuda_bindings(),
        nvrtc=_part(compiler.version),
        driver=found_driver,
        gpus=gpus,
        no_gpu=no_gpu,
        cache=Cache(str(cache_dir.directory()), len(entries), sum(entry.size for entry in entries)),
        archives=tuple(
            Archive(str(found.path), arch, len(found), found.path.stat().st_size, found.is_current)
            for arch in device.ARCHITECTURES
            for found in archive.installed(arch)
        ),
    )


def has_nvidia_gpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether there is a card of NVIDIA's, with a driver or without."""
    for each in devices.glob("*"):
        try:
            vendor, kind = (each / "vendor").read_text().strip(), (each / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def _cuda_bindings() -> Part:
    version = packages.version("cuda-bindings")
    if version is None:
        return Part(None, f"not installed. Install it with: {packages.install_command('cuda-bindings')}")
    if version.partition(".")[0] != str(NEEDED_CUDA):
        command = packages.install_command("cuda-bindings").replace("--force-reinstall ", "")
        return Part(version, f"{version} is not for CUDA {NEEDED_CUDA}. Install one that is with: {command}")
    return Part(version)


def _part(version: Callable[[], tuple[int, int]]) -> Part:
    try:
        major, minor = version()
    except RuntimeError as error:  # UnavailableError, DriverError and CompilationError are all of this type
        return Part(None, str(error))
    return Part(f"{major}.{minor}")


def _driver() -> Part:
    found = _part(driver.version)
    if found.version is not None and int(found.version.partition(".")[0]) < NEEDED_CUDA:
        return Part(found.version, f"too old: it is for CUDA {found.version}. Install one for CUDA {NEEDED_CUDA}.")
    return found


def _gpus(found_driver: Part) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs that torch sees, or why there are none."""
    try:
        if torch.cuda.is_available():
            return tuple(_gpu(index) for index in range(torch.cuda.device_count())), None
    except RuntimeError as error:
        return (), f"torch cannot use CUDA: {error}"
    built = f"torch {torch.__version__} is built without CUDA" if torch.version.cuda is None else None
    if not has_nvidia_gpu() and found_driver.version is None:
        return (), f"this machine has no NVIDIA GPU{'' if built is None else f', and {built}'}"
    if built is not None:
        return (), f"{built}. Install a build that has it with: {TORCH}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    advice = "Check that nvidia-smi lists one." if visible is None else f"CUDA_VISIBLE_DEVICES is {visible!r}."
    if found_driver.missing is not None:
        advice = "It needs the driver."
    return (), f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no NVIDIA GPU. {advice}"


def _gpu(index: int) -> Gpu:
    found = device.installed(index)
    arch = unsupported = None
    try:
        arch = found.arch
    except UnavailableError as error:
        unsupported = str(error)
    return Gpu(
        index=index,
        name=found.name,
        capability=".".join(map(str, found.capability)),
        arch=arch,
        unsupported=unsupported,
        sm_count=found.sm_count,
        shared_bytes_per_sm=found.shared_bytes_per_sm,
        shared_bytes_per_block=found.shared_bytes_per_block,
        l2_bytes=found.l2_bytes,
    )
