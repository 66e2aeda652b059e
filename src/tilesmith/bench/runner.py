"""Measures products as an expert would: everyone in one run, in turn, on random data, until the medians are certain."""

import math
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import torch

import tilesmith
from tilesmith.bench import gpu_state, timing
from tilesmith.bench.ahead import compile_ahead
from tilesmith.bench.contenders import Contender, Operands, checked, contenders, precision_of
from tilesmith.bench.results import AGAIN, OURS, TORCH, Competitor, Entry, Environment, Fastest
from tilesmith.bench.suites import OVERRIDDEN, Product
from tilesmith.bench.tuning import tune
from tilesmith.bench.vocabulary import SECONDS, Opponent, opponents
from tilesmith.core import accuracy as accuracies
from tilesmith.core import device as devices
from tilesmith.core import nvml
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.core.roofline import Peak, Roofline, Work, tensor_rate
from tilesmith.planner import choose
from tilesmith.runtime import compiler

_FOLDER: Final = re.compile(r"(?:^|(?<==))/.*/")  # of a file
_CERTAIN: Final = 0.01  # half of the median's confidence interval, relative to it
_ROUNDS: Final = 20  # at a time, and at least
_MAX_ROUNDS: Final = 1000
_SHORT_MS: Final = 0.05  # a product that takes less is timed in a CUDA graph, too
_OF_PRODUCT: Final = (
    *("name", "m", "k", "n", "batch", "a_layout", "b_layout", "dtype", "why", "variant", "clock", "tries_all"),
)
_WITHIN: Final = 1.7  # times the expected time of the plan that is taken: others that are tried, where all are


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. What is None is as the suite has it."""

    against: tuple[Opponent, ...] | None = None
    accuracy: Accuracy | None = None
    warm_l2: bool = False
    seconds: float = SECONDS  # for each product, at most, once its kernels are there


def compile_kernels(products: Iterable[Product], settings: Settings) -> None:
    """Compiles what the products need, several kernels at the same time. Of torch's it is the planner's business which
    are ours, so that a few may be compiled in vain."""
    gpu = devices.installed(torch.cuda.current_device())
    asked = ((product, accuracies.resolve(settings.accuracy or product.accuracy)) for product in products)
    problems = (Operands.of(each, "meta").problem(each, accuracy) for each, accuracy in asked)
    compile_ahead((choose(problem, gpu) for problem in problems), gpu.arch)


def measure(product: Product, suite: str, settings: Settings) -> Entry:
    """Measures one product on the current GPU. WrongResultError, before anything is timed, if a result is wrong."""
    operands = Operands.of(product, "cuda", seed=random.randrange(2**31))
    asked = settings.accuracy or product.accuracy
    accuracy = accuracies.resolve(asked)
    problem = operands.problem(product, accuracy)
    plan = choose(problem, devices.installed(torch.cuda.current_device()))
    against = opponents(product.against) if settings.against is None else settings.against
    found = contenders(product, operands, asked, against)
    errors = {name: checked(name, each, product, operands) for name, each in found.items()}
    state = gpu_state.watched(torch.cuda.current_device())
    samples = _samples(product, found, settings)
    seen = state()
    is_short = product.clock == "gpu" and statistics.median(samples[OURS]) < _SHORT_MS
    graphs = _graph_times(found) if is_short else {}
    hosts = _host_times(found) if product.clock == "wall" else {}
    competitors = {
        name: Competitor(
            precision=found[name].precision,
            samples_ms=tuple(times),
            graph_ms=graphs.get(name),
            comp=None if (error := errors[name]) is None or math.isnan(error.comp) else error.comp,
            norm=None if error is None else error.norm,
            host_ms=hosts.get(name),
        )
        for name, times in samples.items()
    }
    entry = _described(product, suite, problem, plan, accuracy)
    name = route(found[OURS]) if product.operator in OVERRIDDEN else plan.name
    entry = replace(entry, plan=name, competitors=competitors, state=seen)
    if not (product.tries_all and TORCH in entry.opponents and entry.is_slower):
        return entry
    tuned = tune(problem, _WITHIN)
    return replace(entry, fastest=Fastest(tuned.best, tuned.regret))


def route(ours: Contender) -> str:
    """The plan of a call under an override, or why it is left to torch."""
    with ours.around():
        ours.call()
        (stat,) = tilesmith.stats().entries
    return stat.reason if stat.where == "tilesmith" else f"left to torch: {stat.reason}"


def _samples(product: Product, found: Mapping[str, Contender], settings: Settings) -> dict[str, list[float]]:
    """Milliseconds of everyone by the product's clock."""
    calls = {name: each.alone for name, each in found.items()}

    def timed(rounds: int, seed: int) -> dict[str, list[float]]:
        if product.clock == "wall":
            times = _by_wall_clock(found, rounds=rounds, seed=seed)
        else:
            warmups = 3 if seed == 0 else 0
            times = timing.interleaved(calls, rounds=rounds, warmups=warmups, seed=seed, warm_l2=settings.warm_l2)
        return {name: list(each.samples) for name, each in times.items()}

    return until_certain(timed, settings.seconds)


def _by_wall_clock(found: Mapping[str, Contender], **how: Any) -> dict[str, timing.Timing]:
    calls, around = ({name: getattr(each, part) for name, each in found.items()} for part in ("call", "around"))
    return timing.by_wall_clock(calls, around, **how)


def _host_times(found: Mapping[str, Contender]) -> dict[str, float]:
    return {name: times.median for name, times in _by_wall_clock(found, waits=False).items()}


def _graph_times(found: Mapping[str, Contender]) -> dict[str, float]:
    capturable = {name: each.alone for name, each in found.items() if name != AGAIN}
    return {name: times.median for name, times in timing.graphed(capturable).items()}


def _described(product: Product, suite: str, problem: Problem, plan: Plan, accuracy: Accuracy) -> Entry:
    """All but what is measured."""
    p = problem
    result = p.m * p.n * p.out.dtype.itemsize * p.batches
    read = (p.m * p.k * p.a.dtype.itemsize + p.k * p.n * p.b.dtype.itemsize) * p.batches + result * product.residual
    work = Work(p.flops, read, result)
    roofline = _roofline(work, plan.device, precision_of(product.dtype, accuracy))
    return Entry(
        **{field: getattr(product, field) for field in _OF_PRODUCT},
        suite=suite,
        shape=str(product),
        accuracy=accuracy if product.dtype == "float32" else None,
        plan="",
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
        if certain or clock() > end or len(samples[OURS]) >= _MAX_ROUNDS:
            return samples


def without_folder(word: str) -> str:
    """A word of a command; of a file's path on this machine, which nobody else has, its name.

    >>> [without_folder(word) for word in ("--record", "/home/me/r.json", "--html=/tmp/a/b.html", "docs/r.json")]
    ['--record', 'r.json', '--html=b.html', 'docs/r.json']
    """
    return _FOLDER.sub("", word)


def environment(command: Iterable[str], settings: Settings, commit: str | None = None) -> Environment:
    """Where this runs. `commit` is the source's, where git cannot tell it."""
    index = torch.cuda.current_device()
    return Environment(
        date=date.today().isoformat(),
        command=" ".join(map(without_folder, command)),
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
        commit=_commit() if commit is None else commit,
    )


def _commit() -> str:
    """That of the checkout that this file is in, with a mark if it was changed since; "" outside of one."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    """The host's processor by name where Linux tells it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
