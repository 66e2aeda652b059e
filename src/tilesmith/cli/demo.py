"""`tilesmith demo`: the five reference products.

With a GPU they are multiplied at full size, checked against float64 and timed against torch.
Without one they are planned for an H200 and compiled for it, and a model of the kernels'
arithmetic is checked on small shapes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tilesmith
from tilesmith import device
from tilesmith.bench import suites, textbook, timing
from tilesmith.bench.errors import Error, error
from tilesmith.bench.suites import Product
from tilesmith.cli import console, format_bytes, json_option, print_json
from tilesmith.errors import UnavailableError
from tilesmith.jit import compiler, source
from tilesmith.planner import choose
from tilesmith.problem import Problem
from tilesmith.roofline import Peak

_CLOCK_HZ: Final = Peak.known(device.STAND_IN).clock_hz  # the highest
_REDUCED: Final = 96  # the largest size of the small shapes
_ROUNDINGS: Final = 2  # an error may be this many times what K roundings add up to
_ERRORS: Final = "as the largest of all elements relative to |A| |B|, then as a relative norm"


@dataclass(frozen=True, slots=True)
class Measured:
    """One product on the GPU."""

    product: str
    sizes: tuple[int, int, int]  # M, K, N
    plan: str
    ours_ms: float
    torch_ms: float
    speedup: float  # torch's time by ours
    tflops: float
    ours_error: Error
    torch_error: Error
    accurate: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a machine with a GPU can say."""

    gpu: str
    arch: str
    products: tuple[Measured, ...]
    accurate: bool
    not_measured: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One product planned for a GPU that is not here, and its kernel compiled."""

    product: str
    sizes: tuple[int, int, int]
    plan: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    registers: int
    spill_bytes: int  # stored and loaded
    estimated_ms: float  # by the planner's cost model; not a measurement


@dataclass(frozen=True, slots=True)
class Modelled:
    """The arithmetic of the kernels, by its model on the CPU, for a small product of the same kind."""

    product: str
    sizes: tuple[int, int, int]
    model_error: Error
    torch_error: Error
    accurate: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """What a machine without a GPU can say."""

    gpu: None
    planned_for: str
    arch: str
    nvrtc: str
    plans: tuple[Compiled, ...]
    arithmetic: tuple[Modelled, ...]
    accurate: bool
    not_measured: tuple[str, ...]


class _Unavailable(click.ClickException):
    exit_code = 2


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """Multiply the five reference products, or plan and compile them where there is no GPU.

    Exits with 1 if a result is less exact than it must be, and with 2 if the machine lacks something needed.
    """
    try:
        result = _run(as_json)
    except UnavailableError as missing:
        raise _Unavailable(str(missing)) from missing
    if as_json:
        print_json(result)
    elif isinstance(result, Measurement):
        _print_measurement(result)
    else:
        _print_preview(result)
    if not result.accurate:
        raise click.exceptions.Exit(1)


def _run(quiet: bool) -> Measurement | Preview:
    products = suites.load("seeds")
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet,
    )
    if torch.cuda.is_available():
        with progress:
            return measure(progress.track(products, description="Multiplying"))
    if not quiet:
        click.echo(
            f"torch finds no GPU here: planning and compiling for an {device.named(device.STAND_IN).name} instead."
        )
    with progress:
        return preview(progress.track(products, description="Compiling"))


def measure(products: Iterable[Product]) -> Measurement:
    """Multiplies each product on the current GPU, checks it and times it against torch."""
    gpu = device.installed(torch.cuda.current_device())
    arch = gpu.arch  # raises for a GPU that is not supported, before anything is allocated
    measured: list[Measured] = []
    not_measured: list[str] = []
    with timing.float32_precision():
        for product in products:
            try:
                measured.append(_measure(product, gpu))
            except torch.OutOfMemoryError:
                not_measured.append(f"{product.name} ({product}): it needs more memory than the GPU has free")
            torch.cuda.empty_cache()
    return Measurement(
        gpu=gpu.name,
        arch=arch,
        products=tuple(measured),
        accurate=all(each.accurate for each in measured),
        not_measured=tuple(not_measured),
    )


def _measure(product: Product, gpu: device.Device) -> Measured:
    a, b = product.operands("cuda")
    problem = Problem.of(a, b)
    plan = choose(problem, gpu)

    # Poisoned: an element that is not written stays NaN, and so does the error.
    out = torch.full(problem.out_shape, math.nan, dtype=a.dtype, device=a.device)
    ours_error = error(tilesmith.matmul(a, b, out=out), a, b)
    del out
    torch_error = error(torch.matmul(a, b), a, b)

    times = timing.interleaved({"ours": lambda: tilesmith.matmul(a, b), "torch": lambda: torch.matmul(a, b)})
    ours_ms, torch_ms = times["ours"].median, times["torch"].median
    return Measured(
        product=product.name,
        sizes=(product.m, product.k, product.n),
        plan=plan.name,
        ours_ms=ours_ms,
        torch_ms=torch_ms,
        speedup=torch_ms / ours_ms,
        tflops=problem.flops / ours_ms * 1e-9,
        ours_error=ours_error,
        torch_error=torch_error,
        accurate=_is_accurate(ours_error, product.k),
    )


def preview(products: Iterable[Product]) -> Preview:
    """Plans each product for a GPU that is not here, compiles its kernel, and checks the model of its arithmetic."""
    gpu = device.named(device.STAND_IN)
    nvrtc = ".".join(map(str, compiler.version()))
    compiled: list[Compiled] = []
    modelled: list[Modelled] = []
    for product in products:
        compiled.append(_compile(product, gpu))
        modelled.append(_model(product.reduced(_REDUCED)))
    return Preview(
        gpu=None,
        planned_for=gpu.name,
        arch=gpu.arch,
        nvrtc=nvrtc,
        plans=tuple(compiled),
        arithmetic=tuple(modelled),
        accurate=all(each.accurate for each in modelled),
        not_measured=("the speed of the kernels", "what the kernels themselves compute"),
    )


def _compile(product: Product, gpu: device.Device) -> Compiled:
    plan = choose(Problem.of(*product.operands("meta")), gpu)
    used = compiler.resources(source.render(plan.product.kernel), gpu.arch)
    return Compiled(
        product=product.name,
        sizes=(product.m, product.k, product.n),
        plan=plan.name,
        grid=plan.product.grid,
        threads=plan.product.threads,
        shared_bytes=plan.product.kernel.shared_bytes,
        registers=used.registers,
        spill_bytes=used.spill_store_bytes + used.spill_load_bytes,
        estimated_ms=plan.cycles / _CLOCK_HZ * 1e3,
    )


def _model(product: Product) -> Modelled:
    a, b = product.operands("cpu")
    model_error, torch_error = error(textbook.product(a, b), a, b), error(torch.matmul(a, b), a, b)
    return Modelled(
        product=product.name,
        sizes=(product.m, product.k, product.n),
        model_error=model_error,
        torch_error=torch_error,
        accurate=_is_accurate(model_error, product.k),
    )


def _is_accurate(ours: Error, k: int) -> bool:
    """Whether the largest error is no more than rounding explains: K roundings of half a unit in the last place
    add up as a random walk does, to the square root of K of them. NaN is not accurate."""
    return ours.comp <= _ROUNDINGS * math.sqrt(k) * 2**-24


def _print_measurement(result: Measurement) -> None:
    out = console()
    table = _table(out, f"float32 products on {result.gpu} ({result.arch})", "product", "plan")
    for heading in ("ours ms", "torch ms", "ratio", "TFLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("error ours", "error torch"):
        table.add_column(heading, justify="right")
    for each in result.products:
        table.add_row(
            *(f"{each.product}\n{_sizes(each.sizes)}", each.plan),
            *(f"{each.ours_ms:.3f}", f"{each.torch_ms:.3f}", f"{each.speedup:.2f}", f"{each.tflops:.1f}"),
            *(str(each.ours_error), str(each.torch_error)),
            style=None if each.accurate else "red",
        )
    out.print(table)
    out.print(
        "Sizes are M x K x N. Times are medians, ours and torch's taken in turn; the ratio is torch's time by ours, "
        f"and TFLOP/s are ours. Errors are against float64, {_ERRORS}."
    )
    for missed in result.not_measured:
        out.print(f"Not measured: {missed}.", style="yellow")
    wrong = [each.product for each in result.products if not each.accurate]
    if wrong:
        out.print(f"NOT ACCURATE: {', '.join(wrong)}.", style="red")
    elif result.products:
        out.print(f"Accurate: no element is off by more than {_ROUNDINGS} sqrt(K) roundings of float32.")


def _print_preview(result: Preview) -> None:
    out = console()
    title = f"Planned for {result.planned_for}, compiled for {result.arch} by NVRTC {result.nvrtc}"
    plans = _table(out, title, "product", "plan")
    for heading in ("grid", "threads", "shared", "registers", "spills", "estimate"):
        plans.add_column(heading, justify="right", no_wrap=True)
    for plan in result.plans:
        plans.add_row(
            *(f"{plan.product}\n{_sizes(plan.sizes)}", plan.plan),
            *(_grid(plan.grid), str(plan.threads), format_bytes(plan.shared_bytes)),
            *(str(plan.registers), format_bytes(plan.spill_bytes), f"{plan.estimated_ms:.2f} ms"),
        )
    out.print(plans)
    out.print(
        f"Sizes are M x K x N. The estimate is the planner's cost model at {_CLOCK_HZ / 1e9:.2f} GHz; "
        "it serves to compare plans and is not a measurement."
    )

    arithmetic = _table(out, "The arithmetic on small shapes, by its model on the CPU", "product", "M x K x N")
    for heading in ("model's error", "torch's error on the CPU"):
        arithmetic.add_column(heading, justify="right", no_wrap=True)
    for each in result.arithmetic:
        arithmetic.add_row(
            *(each.product, _sizes(each.sizes), str(each.model_error), str(each.torch_error)),
            style=None if each.accurate else "red",
        )
    out.print()
    out.print(arithmetic)
    out.print(
        "The model does one chain of fused multiply-adds over K for each element, as the kernels do. Errors are "
        f"against float64, {_ERRORS}."
    )
    wrong = [each.product for each in result.arithmetic if not each.accurate]
    if wrong:
        out.print(f"NOT ACCURATE: {', '.join(wrong)}.", style="red")

    out.print()
    out.print(f"Not measured here, for want of a GPU: {', and '.join(result.not_measured)}.", style="bold")
    out.print(
        "To get both, run this command where there is an NVIDIA GPU of compute capability 7.5 or later and a build of "
        "torch with CUDA: it then multiplies at full size, checks against float64 and times against torch. "
        "`make test-gpu` runs the tests of the kernels there."
    )


def _table(out: Console, title: str, *columns: str) -> Table:
    """A table that fits 80 columns, with wider gaps where there is room."""
    gap = 2 if out.width >= 100 else 1
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _sizes(sizes: tuple[int, int, int]) -> str:
    return "x".join(map(str, sizes))


def _grid(grid: tuple[int, int, int]) -> str:
    """The grid without the ones at its end."""
    last = max((i for i, size in enumerate(grid) if size > 1), default=0)
    return "x".join(map(str, grid[: last + 1]))
