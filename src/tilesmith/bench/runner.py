"""Measures products as an expert would: everyone in one run, in turn, on random data, until the medians are certain."""

import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final, Literal

import torch

import tilesmith
from tilesmith import accuracy as accuracies
from tilesmith import device as devices
from tilesmith import nvml
from tilesmith.accuracy import Accuracy
from tilesmith.bench import gpu_state, timing
from tilesmith.bench.errors import error
from tilesmith.bench.precision import best_class, bounds_of_product
from tilesmith.bench.results import AGAIN, OURS, TORCH, Competitor, Entry, Environment
from tilesmith.bench.suites import Product
from tilesmith.device import Device
from tilesmith.jit import compiler
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import Problem
from tilesmith.roofline import Peak, Roofline, Work, tensor_rate

Opponent = Literal["torch", "torch-tf32", "triton"]
OPPONENTS: Final[tuple[Opponent, ...]] = ("torch", "torch-tf32", "triton")

_CERTAIN: Final = 0.01  # half of the median's confidence interval, relative to it
_ROUNDS: Final = 20  # at a time, and at least
_MOST_ROUNDS: Final = 1000
_SHORT_MS: Final = 0.05  # a product that takes less is timed in a CUDA graph, too
_LARGEST_CHECKED: Final = 2**31  # elements of a result whose error is taken; float64 takes memory and time

Call = Callable[[], torch.Tensor]


class WrongResultError(RuntimeError):
    """A competitor's result is not the product: a time of it would mean nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure."""

    against: tuple[Opponent, ...] = ("torch",)
    accuracy: Accuracy | None = None
    warm_l2: bool = False
    seconds: float = 4.0  # for each product, at most, once its kernels are there


@dataclass(frozen=True, slots=True)
class _Contender:
    call: Call
    precision: str


def measure(product: Product, suite: str, settings: Settings) -> Entry:
    """Measures one product on the current GPU. WrongResultError, before anything is timed, if a result is wrong."""
    a, b = product.operands("cuda", seed=random.randrange(2**31))
    accuracy = accuracies.resolve(settings.accuracy)
    gpu = devices.installed(torch.cuda.current_device())
    problem = Problem.of(a, b, accuracy=accuracy)
    plan = choose(problem, gpu)
    contenders = _contenders(a, b, product, settings)
    errors = {name: _checked(name, each, a, b, product) for name, each in contenders.items()}
    calls = {name: each.call for name, each in contenders.items()}
    with gpu_state.watching(torch.cuda.current_device()) as watch:
        samples = until_certain(lambda rounds, seed: _timed(calls, rounds, seed, settings), settings.seconds)
    graphs = _graph_times(calls) if statistics.median(samples[OURS]) < _SHORT_MS else {}
    competitors = {
        name: Competitor(each.precision, tuple(samples[name]), graphs.get(name), *errors[name])
        for name, each in contenders.items()
    }
    return replace(_described(product, suite, problem, plan, accuracy), competitors=competitors, state=watch.state)


def _described(product: Product, suite: str, problem: Problem, plan: Plan, accuracy: Accuracy) -> Entry:
    """All but what is measured."""
    p = problem
    read = (p.m * p.k * p.a.dtype.itemsize + p.k * p.n * p.b.dtype.itemsize) * p.batches
    work = Work(p.flops, read, p.m * p.n * p.out.dtype.itemsize * p.batches)
    roofline = _roofline(work, plan.device, _precision(product.dtype, accuracy))
    return Entry(
        suite=suite,
        name=product.name,
        shape=str(product),
        m=product.m,
        k=product.k,
        n=product.n,
        batch=product.batch,
        a_layout=product.a_layout,
        b_layout=product.b_layout,
        dtype=product.dtype,
        accuracy=accuracy if product.dtype == "float32" else None,
        why=product.why,
        plan=plan.name,
        workspace_bytes=plan.workspace_bytes,
        flops=work.flops,
        least_bytes=work.read_bytes + work.written_bytes,
        roofline_ms=None if roofline is None else roofline.seconds * 1e3,
        bound=None if roofline is None else roofline.bound,
        competitors={},
    )


def _roofline(work: Work, gpu: Device, precision: str) -> Roofline | None:
    """None where the peaks for such products are not known."""
    peak, rate = Peak.of(gpu), tensor_rate(gpu.capability, precision)
    is_known = precision in ("fp32", "tf32", "fp16", "bf16") and rate is not None
    return Roofline.of(work, peak, rate) if peak is not None and is_known else None


def _precision(dtype: str, accuracy: Accuracy) -> str:
    precision = best_class(getattr(torch, dtype)) or "int"
    return "tf32" if precision == "fp32" and accuracy == "tf32" else precision


def _contenders(a: torch.Tensor, b: torch.Tensor, product: Product, settings: Settings) -> dict[str, _Contender]:
    """Ours first, then the opponents that have such a product."""
    precision = _precision(product.dtype, accuracies.resolve(settings.accuracy))
    found = {OURS: _Contender(lambda: tilesmith.matmul(a, b, accuracy=settings.accuracy), precision)}
    if not a.dtype.is_floating_point:
        return found  # torch has no product of integers on a GPU
    own = _precision(product.dtype, "fp32")
    if "torch" in settings.against:
        found[TORCH] = _Contender(lambda: torch.matmul(a, b), own)
        found[AGAIN] = _Contender(lambda: torch.matmul(a, b), own)
    if "torch-tf32" in settings.against and a.dtype == torch.float32:
        found["torch-tf32"] = _Contender(lambda: _in_tf32(a, b), "tf32")
    if "triton" in settings.against and a.dtype.itemsize < 8:
        from tilesmith.bench.triton_product import multiply

        found["triton"] = _Contender(lambda: multiply(a, b, tf32=precision == "tf32"), precision)
    return found


def _in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with timing.float32_precision("tf32"):
        return torch.matmul(a, b)


def _checked(
    name: str, contender: _Contender, a: torch.Tensor, b: torch.Tensor, product: Product
) -> tuple[float | None, float | None]:
    """comp and norm. The memory that results get was poisoned, so that what is not written shows."""
    poison = torch.full((a.shape[-2] * b.shape[-1] * max(product.batch, 1),), math.nan, device="cuda")
    del poison
    result = contender.call()
    if not a.dtype.is_floating_point:
        return None, None
    if not bool(result.isfinite().all()):
        raise WrongResultError(f"{product.name}: the result of {name} is not finite")
    if result.numel() > _LARGEST_CHECKED:
        return None, None
    found = error(result, a, b)
    if found.comp > bounds_of_product(product.k, 0.0)[contender.precision]:
        raise WrongResultError(f"{product.name}: the result of {name} is wrong, its errors are {found}")
    return found.comp, found.norm


def _timed(calls: Mapping[str, Call], rounds: int, seed: int, settings: Settings) -> dict[str, list[float]]:
    warmups = 3 if seed == 0 else 0
    found = timing.interleaved(calls, rounds=rounds, warmups=warmups, seed=seed, warm_l2=settings.warm_l2)
    return {name: list(times.samples) for name, times in found.items()}


def until_certain(
    timed: Callable[[int, int], Mapping[str, list[float]]],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:
    """Milliseconds of everyone, in as many rounds as it takes until all medians are certain, or the time is over.
    `timed` takes a number of rounds and a seed for their order."""
    end = clock() + seconds
    samples: dict[str, list[float]] = {}
    while True:
        for name, times in timed(_ROUNDS, len(samples.get(OURS, ()))).items():
            samples.setdefault(name, []).extend(times)
        certain = all(Competitor("", tuple(times)).uncertainty < _CERTAIN for times in samples.values())
        if certain or clock() > end or len(samples[OURS]) >= _MOST_ROUNDS:
            return samples


def _graph_times(calls: Mapping[str, Call]) -> dict[str, float]:
    capturable = {name: call for name, call in calls.items() if name != AGAIN}
    return {name: times.median for name, times in timing.graphed(capturable).items()}


def environment(command: Iterable[str], settings: Settings) -> Environment:
    """Where this runs."""
    index = torch.cuda.current_device()
    return Environment(
        date=date.today().isoformat(),
        command=" ".join(command),
        gpu=devices.installed(index).name,
        driver=nvml.driver_version(),
        versions={
            "tilesmith": tilesmith.__version__,
            "torch": torch.__version__,
            "CUDA": torch.version.cuda or "none",
            "NVRTC": ".".join(map(str, compiler.version())),
            "Python": platform.python_version(),
        },
        host=_processor(),
        l2="warm" if settings.warm_l2 else "flushed",
    )


def _processor() -> str:
    """The host's processor by name where Linux tells it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
