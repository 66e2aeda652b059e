"""What Tilesmith needs for its full speed, each with whether it is here and the command that brings it."""

import os
import platform
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tilesmith.cli import machine
from tilesmith.cli.machine import NEEDED_CUDA, Info
from tilesmith.core import cache_dir, packages, rates
from tilesmith.core import device as devices
from tilesmith.core.errors import UnavailableError
from tilesmith.emulator import build as emulator
from tilesmith.planner import tuned
from tilesmith.runtime import cache

_DRIVER: Final = 580  # the first that is for CUDA 13


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is needed."""

    name: str
    found: str | None  # what is here; None if it is missing
    missing: str | None = None  # why
    mend: str | None = None  # a command; None where none helps

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.found is not None, **asdict(self)}


def checks() -> tuple[Check, ...]:
    """All of them, those first that others need."""
    found = machine.collect()
    return (
        _torch(),
        _driver(found),
        _gpu(found),
        *_packages(found),
        *_kernels(found),
        *_rates(),
        _cache(cache_dir.directory()),
        _compiler(),
    )


def _torch() -> Check:
    built_for = torch.version.cuda
    if built_for is None:
        return Check("torch with CUDA", None, f"torch {torch.__version__} is built without it", machine.TORCH)
    return Check("torch with CUDA", f"{torch.__version__}, for CUDA {built_for}")


def _driver(found: Info) -> Check:
    name, driver = "NVIDIA driver", found.driver
    if driver.missing is None:
        return Check(name, f"for CUDA {driver.version}")
    if found.cuda_bindings.version is None:
        return Check(name, None, "it cannot be asked without cuda-bindings", _bindings())
    if not machine.has_nvidia_gpu():
        return Check(name, None, "there is no NVIDIA GPU that it could be for")
    reason = f"it is for CUDA {driver.version}" if driver.version else "it is not installed"
    return Check(name, None, f"{reason}; CUDA {NEEDED_CUDA} needs {_DRIVER} or later", _driver_command())


def _driver_command() -> str | None:
    """For the systems whose package is known."""
    system: dict[str, str] = {}
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        return None
    known = {system.get("ID", ""), *system.get("ID_LIKE", "").split()}
    return f"sudo apt-get install nvidia-driver-{_DRIVER}" if "ubuntu" in known else None


def _gpu(found: Info) -> Check:
    name = "supported GPU"
    if any(gpu.arch for gpu in found.gpus):
        return Check(name, ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in found.gpus if gpu.arch))
    if found.gpus:
        return Check(name, None, found.gpus[0].unsupported)
    hidden = "unset CUDA_VISIBLE_DEVICES" if os.environ.get("CUDA_VISIBLE_DEVICES") is not None else None
    return Check(name, None, found.no_gpu, hidden if machine.has_nvidia_gpu() else None)


def _bindings() -> str:
    return packages.install_command("cuda-bindings")


def _packages(found: Info) -> Iterator[Check]:
    bindings = found.cuda_bindings
    if bindings.missing is None:
        yield Check("cuda-bindings", bindings.version)
    else:
        yield Check("cuda-bindings", None, bindings.missing.partition(" Install")[0], _bindings())
    if found.nvrtc.missing is None:
        yield Check("NVRTC", found.nvrtc.version)
    else:
        command = packages.install_command("cuda-bindings", "nvidia-cuda-nvrtc")
        yield Check("NVRTC", None, found.nvrtc.missing.partition(" Install")[0], command)


def _kernels(found: Info) -> Iterator[Check]:
    """Those that are compiled ahead, for the GPUs here."""
    for arch in found.architectures:
        name = f"kernels for {arch}"
        current = [each for each in found.archives if each.arch == arch and each.is_current]
        if current:
            yield Check(name, f"{current[0].kernels} in {current[0].path}")
            continue
        is_there = any(each.arch == arch for each in found.archives)
        reason = "the archive is of other sources" if is_there else "none are compiled ahead: each is at its first use"
        yield Check(name, None, reason, f"tilesmith build --gpu {arch}")


def _rates() -> Iterator[Check]:
    """What is known of the speed of the GPUs here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for gpu in dict.fromkeys(devices.installed(index) for index in range(count)):
        name, stand_in = f"rates of {gpu.name}", rates.stand_in(gpu)
        if stand_in is None:
            yield Check(name, "fitted")
        elif tuned.file(gpu).exists():
            yield Check(name, f"those of {stand_in}, and plans that were tuned here")
        else:
            reason = f"plans are chosen by those of {stand_in}; measured here, the fastest are kept"
            yield Check(name, None, reason, "tilesmith tune --suite aligned --suite odd")


def _cache(folder: Path) -> Check:
    name, quoted = "cache", shlex.quote(str(folder))
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check(name, None, f"{nearest} cannot be written to", 'export XDG_CACHE_HOME="$HOME/.cache"')
    if nearest == folder and not cache.is_private(folder):
        is_own = folder.stat().st_uid == os.getuid()
        reason = "others may write to it" if is_own else "it belongs to another user"
        mend = f"chmod go-w {quoted}" if is_own else f"sudo chown -R {os.getuid()} {quoted}"
        return Check(name, None, f"{folder} is not used: {reason}", mend)
    return Check(name, str(folder))


def _compiler() -> Check:
    name = "C++ compiler"
    try:
        return Check(name, emulator.compiler().path)
    except UnavailableError as error:
        apt = Path("/usr/bin/apt-get").exists()
        reason = f"the emulator needs one, and what `optimize` writes does, too: {error}"
        return Check(name, None, reason.partition("; install")[0], "sudo apt-get install g++ binutils" if apt else None)
