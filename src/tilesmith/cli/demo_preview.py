"""`tilesmith demo` without a GPU: plans, machine code, and small products of the same kind in the emulator."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from tilesmith.bench.errors import Error, error
from tilesmith.bench.suites import Product
from tilesmith.cli import console, format_bytes
from tilesmith.cli.demo_parts import ERRORS, format_sizes, is_accurate, table
from tilesmith.core import device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.core.roofline import Peak
from tilesmith.emulator.run import run
from tilesmith.kernels import family_of
from tilesmith.planner import choose
from tilesmith.runtime import compiler, source

_REDUCED: Final = 256  # the largest size of the small products


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
class Emulated:
    """A small product of the same kind, by the kernels of the large one, in the emulator."""

    product: str
    sizes: tuple[int, int, int]
    plan: str
    seconds: float  # with the compilation of what was not in the cache
    error: Error
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
    emulated: tuple[Emulated, ...]
    accurate: bool
    not_measured: tuple[str, ...]


def preview(products: Iterable[Product]) -> Preview:
    """Plans each product for a GPU that is not here, compiles its kernel, and emulates a small one."""
    gpu = device.named(device.STAND_IN)
    nvrtc = ".".join(map(str, compiler.version()))
    compiled: list[Compiled] = []
    emulated: list[Emulated] = []
    for product in products:
        plan = choose(Problem.of(*product.operands("meta")), gpu)
        compiled.append(_compile(product, plan))
        emulated.append(_emulate(product.reduced(_REDUCED), plan))
    return Preview(
        gpu=None,
        planned_for=gpu.name,
        arch=gpu.arch,
        nvrtc=nvrtc,
        plans=tuple(compiled),
        emulated=tuple(emulated),
        accurate=all(each.accurate for each in emulated),
        not_measured=("the speed of the kernels",),
    )


def _clock_hz() -> float:
    """The highest clock of the GPU that is planned for."""
    return Peak.known(device.STAND_IN).clock_hz


def _compile(product: Product, plan: Plan) -> Compiled:
    used = compiler.resources(source.render(plan.product.kernel), plan.device.arch)
    return Compiled(
        product=product.name,
        sizes=(product.m, product.k, product.n),
        plan=plan.name,
        grid=plan.product.grid,
        threads=plan.product.kernel.threads,
        shared_bytes=plan.product.kernel.shared_bytes,
        registers=used.registers,
        spill_bytes=used.spill_store_bytes + used.spill_load_bytes,
        estimated_ms=plan.cycles / _clock_hz() * 1e3,
    )


def _emulate(product: Product, full: Plan) -> Emulated:
    a, b = product.operands("cpu")
    plan = _of_the_same_kind(full, Problem.of(a, b))
    start = time.perf_counter()
    ours = run(plan, a, b)
    seconds = time.perf_counter() - start
    ours_error = error(ours, a, b)
    return Emulated(
        product=product.name,
        sizes=(product.m, product.k, product.n),
        plan=plan.name,
        seconds=seconds,
        error=ours_error,
        torch_error=error(torch.matmul(a, b), a, b),
        accurate=is_accurate(ours_error, product.k),
    )


def _of_the_same_kind(full: Plan, problem: Problem) -> Plan:
    """The plan for a small problem that has the tiles of a large one's, where it can have them."""
    with_its_tiles = family_of(full).with_configuration
    same = None if with_its_tiles is None else with_its_tiles(full, problem)
    return same or choose(problem, full.device)


def print_preview(result: Preview) -> None:
    out = console()
    title = f"Planned for {result.planned_for}, compiled for {result.arch} by NVRTC {result.nvrtc}"
    plans = table(out, title, "product", "plan")
    for heading in ("grid", "threads", "shared", "registers", "spills", "estimate"):
        plans.add_column(heading, justify="right", no_wrap=True)
    for plan in result.plans:
        plans.add_row(
            *(f"{plan.product}\n{format_sizes(plan.sizes)}", plan.plan),
            *(_grid(plan.grid), str(plan.threads), format_bytes(plan.shared_bytes)),
            *(str(plan.registers), format_bytes(plan.spill_bytes), f"{plan.estimated_ms:.2f} ms"),
        )
    out.print(plans)
    out.print(
        f"Sizes are M x K x N. The estimate is the planner's cost model at {_clock_hz() / 1e9:.2f} GHz; "
        "it serves to compare plans and is not a measurement."
    )

    emulated = table(out, "The same kernels in the emulator, on small products of the same kind", "product", "plan")
    for heading in ("seconds", "error ours", "error torch"):
        emulated.add_column(heading, justify="right")
    for each in result.emulated:
        emulated.add_row(
            *(f"{each.product}\n{format_sizes(each.sizes)}", each.plan, f"{each.seconds:.1f}"),
            *(str(each.error), str(each.torch_error)),
            style=None if each.accurate else "red",
        )
    out.print()
    out.print(emulated)
    out.print(
        "The CUDA sources, compiled as C++, with threads, barriers, TMA and tensor cores emulated to the last "
        f"bit. Seconds include compilation. Errors are against float64, {ERRORS}; torch's are those of the CPU."
    )
    wrong = [each.product for each in result.emulated if not each.accurate]
    if wrong:
        out.print(f"NOT ACCURATE: {', '.join(wrong)}.", style="red")

    out.print()
    out.print(f"Not measured here, for want of a GPU: {', and '.join(result.not_measured)}.", style="bold")
    out.print(
        "To get it, run this command where there is an NVIDIA GPU of compute capability 7.5 or later and a build of "
        "torch with CUDA: it then multiplies at full size, checks against float64 and times against torch. "
        "`make test-gpu` runs the tests of the kernels there."
    )


def _grid(grid: tuple[int, int, int]) -> str:
    """The grid without the ones at its end."""
    last = max((i for i, size in enumerate(grid) if size > 1), default=0)
    return "x".join(map(str, grid[: last + 1]))
