"""`tilesmith info`: what this machine has of what Tilesmith needs. It works where nothing is installed."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import click
import torch
from rich.table import Table

import tilesmith
from tilesmith.cli import console, format_bytes, format_kernels, json_option, print_json
from tilesmith.core import cache_dir as user_files
from tilesmith.core import device
from tilesmith.core.errors import UnavailableError
from tilesmith.runtime import archive, cache, compiler, driver


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


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, GPUs and the kernel cache, and what is missing."""
    found = collect()
    if as_json:
        print_json(found)
    else:
        _print(found)


def collect() -> Info:
    """What is on this machine. Nothing that is missing makes it fail."""
    gpus, no_gpu = _gpus()
    entries = list(cache.entries())
    return Info(
        tilesmith=tilesmith.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda_bindings=_cuda_bindings(),
        nvrtc=_part(compiler.version),
        driver=_part(driver.version),
        gpus=gpus,
        no_gpu=no_gpu,
        cache=Cache(str(user_files.directory()), len(entries), sum(entry.size for entry in entries)),
        archives=tuple(
            Archive(str(found.path), arch, len(found), found.path.stat().st_size, found.is_current)
            for arch in device.ARCHITECTURES
            for found in archive.installed(arch)
        ),
    )


def _cuda_bindings() -> Part:
    try:
        return Part(metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        return Part(None, 'not installed. Install it with: pip install "cuda-bindings>=13,<14"')


def _part(version: Callable[[], tuple[int, int]]) -> Part:
    try:
        major, minor = version()
    except RuntimeError as error:  # UnavailableError, DriverError and CompilationError are all of this type
        return Part(None, str(error))
    return Part(f"{major}.{minor}")


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs that torch sees, or why there are none."""
    try:
        if torch.cuda.is_available():
            return tuple(_gpu(index) for index in range(torch.cuda.device_count())), None
    except RuntimeError as error:
        return (), f"torch cannot use CUDA: {error}"
    if torch.version.cuda is None:
        return (), f"torch {torch.__version__} is built without CUDA. Install a build of torch that has it."
    return (), (
        f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no NVIDIA GPU. "
        "Check that nvidia-smi lists one and that CUDA_VISIBLE_DEVICES does not hide it."
    )


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


def _print(found: Info) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(label: str, value: str | None, missing: str | None) -> None:
        table.add_row(label, value if missing is None else f"missing: {missing}", style=missing and "yellow")

    add("Tilesmith", found.tilesmith, None)
    add("Python", found.python, None)
    add("torch", found.torch, None)
    add("cuda-bindings", found.cuda_bindings.version, found.cuda_bindings.missing)
    add("NVRTC", found.nvrtc.version, found.nvrtc.missing)
    add("CUDA driver", f"for CUDA {found.driver.version}", found.driver.missing)
    for gpu in found.gpus:
        facts = (
            gpu.name,
            gpu.arch or f"unsupported: {gpu.unsupported}",
            f"{gpu.sm_count} SMs",
            f"shared memory {format_bytes(gpu.shared_bytes_per_sm)} an SM, "
            f"{format_bytes(gpu.shared_bytes_per_block)} a block",
            f"L2 {format_bytes(gpu.l2_bytes)}",
        )
        table.add_row(f"GPU {gpu.index}", "\n".join(facts), style=gpu.unsupported and "yellow")
    if found.no_gpu:
        add("GPU", None, found.no_gpu)
    kept = f"{format_kernels(found.cache.entries)}, {format_bytes(found.cache.bytes)}"
    table.add_row("cache", f"{found.cache.directory}\n{kept}")
    for each in found.archives:
        what = f"{format_kernels(each.kernels)} for {each.arch}, {format_bytes(each.bytes)}"
        unused = "" if each.is_current else "\nnot used, since it is of other sources: run tilesmith build"
        table.add_row("archive", f"{each.path}\n{what}{unused}", style="yellow" if unused else None)
    console().print(table)
