"""What `tilesmith build` does: kernels are compiled in processes of their own, and packed into one archive."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from tilesmith.bench.suites import Product
from tilesmith.cli import UnusableError
from tilesmith.cli.output import progress_bar
from tilesmith.core import device as devices
from tilesmith.core.accuracy import numerics
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem
from tilesmith.core.threads import cores
from tilesmith.kernelbench.worker import end_with
from tilesmith.kernels import catalogue
from tilesmith.planner import choose
from tilesmith.runtime import archive, cache, source


@dataclass(frozen=True, slots=True)
class Built:
    """The archive that was written."""

    path: str
    arch: str
    kernels: int
    bytes: int
    seconds: float


def build(
    products: list[Product],
    accuracy: str | None,
    gpu: devices.Device | None,
    output: Path | None,
    jobs: int | None,
    *,
    quiet: bool,
) -> Built:
    """Builds the archive for GPUs of one's architecture: that of the GPU here, or of an H200, if none is given."""
    start = time.monotonic()
    gpu = gpu or devices.here() or devices.named(devices.STAND_IN)
    arch = gpu.arch
    kernels = _kernels(gpu, products, accuracy)
    path = output or archive.users_file(arch)
    _make_folder(path)
    try:
        cubins = _compiled(kernels, arch, jobs or cores(), quiet=quiet)
        content = archive.packed(cubins, arch)
        cache.put(path, content)
    except BrokenProcessPool as error:
        raise UnusableError(
            "a compiler ended before its kernel was done; with fewer --jobs it has more memory"
        ) from error
    except OSError as error:
        raise UnusableError(f"cannot write {path}: {error}") from error
    return Built(str(path), arch, len(cubins), len(content), round(time.monotonic() - start, 1))


def _kernels(gpu: devices.Device, products: list[Product], accuracy: str | None) -> list[Kernel]:
    """The kernels of these products on GPUs of this one's architecture; if there are none, all that such GPUs have."""
    gpus = dict.fromkeys([*(known for known in devices.KNOWN_GPUS.values() if known.arch == gpu.arch), gpu])
    if not products:
        return list(dict.fromkeys(kernel for gpu in gpus for kernel in catalogue(gpu)))
    plans = (_planned(product, accuracy, gpu) for product in products for gpu in gpus)
    return list(dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches))


def _planned(product: Product, accuracy: str | None, gpu: devices.Device) -> Plan:
    a, b = product.operands("meta")
    asked_for = numerics((accuracy or product.accuracy) if a.dtype == torch.float32 else None, a.dtype).accuracy
    return choose(Problem.of(a, b, accuracy=asked_for), gpu)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableError(f"cannot write {path}: {error}") from error
    if path == archive.users_file(path.stem) and not cache.is_private(path.parent):
        raise UnusableError(f"{path.parent} belongs to another user or others may write to it: nothing is read from it")


def _compiled(kernels: list[Kernel], arch: str, jobs: int, *, quiet: bool) -> dict[Kernel, bytes]:
    """The cubins, from the cache on disk or compiled. After Ctrl-C, those that are being compiled are kept there.

    Processes compile them: threads would wait for each other in NVRTC, the more the more cores there are."""
    cubins: dict[Kernel, bytes] = {}
    forked = multiprocessing.get_context("fork")  # they call NVRTC, and nothing of what CUDA may have begun here
    with ProcessPoolExecutor(min(jobs, max(len(kernels), 1)), forked, _begin, (os.getpid(),)) as pool:
        pending = {
            pool.submit(_cubin, source.render(kernel), cache.About.of(kernel, arch)): kernel for kernel in kernels
        }
        progress = progress_bar(quiet=quiet)
        try:
            with progress:
                task = progress.add_task(f"Compiling for {arch}", total=len(kernels))
                for done in as_completed(pending):
                    cubins[pending[done]] = done.result()
                    progress.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return cubins


def _cubin(text: str, about: cache.About) -> bytes:
    return cache.cubin(text, about.arch, about=about)


def _begin(parent: int) -> None:
    """Of a terminal, which sends them to all processes: the first one decides. When that ends, these end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
