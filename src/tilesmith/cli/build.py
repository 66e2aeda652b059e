"""`tilesmith build`: all kernels of an architecture, or those of products, compiled ahead into one archive."""

import multiprocessing
import signal
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import torch
from rich.console import Console

from tilesmith.bench.suites import Product
from tilesmith.cli import INTERRUPTED, UnusableError, format_bytes, format_kernels, json_option, print_json
from tilesmith.cli.products import Named, product_options, progress_bar
from tilesmith.core import device as devices
from tilesmith.core.accuracy import numerics
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem
from tilesmith.core.threads import cores
from tilesmith.kernels import catalogue
from tilesmith.planner import choose
from tilesmith.runtime import archive, cache, source

_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Built:
    """The archive that was written."""

    path: str
    arch: str
    kernels: int
    bytes: int
    seconds: float


@click.command()
@product_options
@click.option(
    "--arch",
    type=click.Choice(devices.ARCHITECTURES),
    help="The architecture; if not given, that of the current GPU, or where there is none that of an H200.",
)
@click.option("--output", type=_FILE, help="The file to write, instead of the one in the user's cache.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Compile so many at the same time, instead of one on each core."
)
@json_option
def build(
    named: Named,
    accuracy: str | None,
    arch: str | None,
    output: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile all kernels for a GPU ahead, into one archive.

    If products are named, it has their kernels alone.

    What is multiplied from then on finds its kernels there, and compiles nothing. Kernels that the cache on disk has
    are not compiled again, so a build that was interrupted goes on where it was.
    """
    start = time.monotonic()
    arch = arch or _arch_here()
    kernels = _kernels(arch, [product for _, product in named.products()], accuracy)
    path = output or archive.users_file(arch)
    _make_folder(path)
    try:
        cubins = _compiled(kernels, arch, jobs or cores())
        content = archive.packed(cubins, arch)
        cache.put(path, content)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenProcessPool as error:
        raise UnusableError(
            "a compiler ended before its kernel was done; with fewer --jobs it has more memory"
        ) from error
    except OSError as error:
        raise UnusableError(f"cannot write {path}: {error}") from error
    built = Built(str(path), arch, len(cubins), len(content), round(time.monotonic() - start, 1))
    if as_json:
        print_json(built)
    else:
        what = f"{format_kernels(built.kernels)} for {arch}, {format_bytes(built.bytes)}"
        click.echo(f"{what}, in {built.seconds:g} s: {path}")


def _arch_here() -> str:
    if torch.cuda.is_available():
        return devices.installed(torch.cuda.current_device()).arch
    return devices.named(devices.STAND_IN).arch


def _kernels(arch: str, products: list[Product], accuracy: str | None) -> list[Kernel]:
    """The kernels of these products on GPUs of this architecture; if there are none, all that such GPUs have."""
    gpus = _gpus(arch)
    if not products:
        return list(dict.fromkeys(kernel for gpu in gpus for kernel in catalogue(gpu)))
    plans = (_planned(product, accuracy, gpu) for product in products for gpu in gpus)
    return list(dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches))


def _gpus(arch: str) -> list[devices.Device]:
    """All that we know of this architecture, or else the one that is here."""
    known = [gpu for gpu in devices.KNOWN_GPUS.values() if gpu.arch == arch]
    if not known and torch.cuda.is_available():
        known = [gpu for gpu in (devices.installed(torch.cuda.current_device()),) if gpu.arch == arch]
    if not known:
        raise UnusableError(f"what a GPU of {arch} needs is known only where there is one: build it there")
    return known


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


def _compiled(kernels: list[Kernel], arch: str, jobs: int) -> dict[Kernel, bytes]:
    """The cubins, from the cache on disk or compiled. After Ctrl-C, those that are being compiled are kept there.

    Processes compile them: threads would wait for each other in NVRTC, the more the more cores there are."""
    cubins: dict[Kernel, bytes] = {}
    forked = multiprocessing.get_context("fork")  # they call NVRTC, and nothing of what CUDA may have begun here
    with ProcessPoolExecutor(min(jobs, max(len(kernels), 1)), forked, initializer=_ignore_interrupts) as pool:
        pending = {pool.submit(cache.cubin, source.render(kernel), arch): kernel for kernel in kernels}
        progress = progress_bar(Console(stderr=True))
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


def _ignore_interrupts() -> None:
    """Of a terminal, which sends them to all processes: the first one decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
