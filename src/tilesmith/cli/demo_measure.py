"""`tilesmith demo` with a GPU: products multiplied at full size, checked against float64 and timed against torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

import tilesmith
from tilesmith.bench import timing
from tilesmith.bench.errors import Error, error
from tilesmith.bench.suites import Product
from tilesmith.cli import console
from tilesmith.cli.demo_parts import ERRORS, ROUNDINGS, format_sizes, is_accurate, table
from tilesmith.core import device
from tilesmith.core.problem import Problem
from tilesmith.planner import choose


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
        accurate=is_accurate(ours_error, product.k),
    )


def print_measurement(result: Measurement) -> None:
    out = console()
    shown = table(out, f"float32 products on {result.gpu} ({result.arch})", "product", "plan")
    for heading in ("ours ms", "torch ms", "ratio", "TFLOP/s"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for heading in ("error ours", "error torch"):
        shown.add_column(heading, justify="right")
    for each in result.products:
        shown.add_row(
            *(f"{each.product}\n{format_sizes(each.sizes)}", each.plan),
            *(f"{each.ours_ms:.3f}", f"{each.torch_ms:.3f}", f"{each.speedup:.2f}", f"{each.tflops:.1f}"),
            *(str(each.ours_error), str(each.torch_error)),
            style=None if each.accurate else "red",
        )
    out.print(shown)
    out.print(
        "Sizes are M x K x N. Times are medians, ours and torch's taken in turn; the ratio is torch's time by ours, "
        f"and TFLOP/s are ours. Errors are against float64, {ERRORS}."
    )
    for missed in result.not_measured:
        out.print(f"Not measured: {missed}.", style="yellow")
    wrong = [each.product for each in result.products if not each.accurate]
    if wrong:
        out.print(f"NOT ACCURATE: {', '.join(wrong)}.", style="red")
    elif result.products:
        out.print(f"Accurate: no element is off by more than {ROUNDINGS} sqrt(K) roundings of float32.")
