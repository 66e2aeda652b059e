"""Measures the candidates for a product, to find out whether the planner takes the best one."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from tilesmith.bench import timing
from tilesmith.bench.ahead import compile_ahead
from tilesmith.bench.suites import random_tensor
from tilesmith.core import device as devices
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.family import Candidate
from tilesmith.planner import candidates
from tilesmith.runtime.executor import CompiledPlan, compiled

_FIRST_ROUNDS: Final = 5
_LAST_ROUNDS: Final = 20
_CLOSE: Final = 1.1  # candidates that are this close to the best go through the last rounds
WORTH: Final = 0.01  # a plan must be faster by this to be preferred


@dataclass(frozen=True, slots=True)
class Tuned:
    """The candidates of one product."""

    problem: Problem
    expected: str  # what the planner would take
    milliseconds: dict[str, float]  # of all that were timed, the fastest first
    untried: int  # candidates that were expected to be too slow

    @property
    def best(self) -> str:
        return next(iter(self.milliseconds))

    @property
    def regret(self) -> float:
        """The time of the planner's choice divided by that of the best."""
        return self.milliseconds[self.expected] / self.milliseconds[self.best]

    @property
    def is_worth_it(self) -> bool:
        return self.regret > 1 + WORTH


def tune(problem: Problem, within: float) -> Tuned:
    """Times, on the current GPU, the candidates that are expected to take no more than `within` times the least."""
    index = torch.cuda.current_device()
    every = sorted(candidates(problem, devices.installed(index)), key=lambda candidate: candidate.cycles)
    tried = [candidate for candidate in every if candidate.cycles <= within * every[0].cycles]
    a, b = _operand(problem, problem.a), _operand(problem, problem.b)
    ready = _compiled(tried, index)
    calls = {name: partial(each, a, b) for name, each in ready.items()}
    found = _medians(calls, _FIRST_ROUNDS)
    finalists: set[str] = set()
    while more := (_close_to_the_best(found) | {every[0].name}) - finalists:  # again where the clock fell in between
        finalists |= more
        found |= _medians({name: calls[name] for name in finalists}, _LAST_ROUNDS)
    ordered = dict(sorted(found.items(), key=lambda each: each[1]))
    return Tuned(problem, every[0].name, ordered, len(every) - len(tried))


def _compiled(tried: Sequence[Candidate], index: int) -> dict[str, CompiledPlan]:
    """The candidates, ready. Their kernels are compiled into the cache at the same time; loading them takes turns."""
    plans = {candidate.name: candidate.plan() for candidate in tried}
    compile_ahead(plans.values(), devices.installed(index).arch)
    return {name: compiled(plan, index) for name, plan in plans.items()}


def _medians(calls: dict[str, partial[torch.Tensor]], rounds: int) -> dict[str, float]:
    return {name: times.median for name, times in timing.interleaved(calls, rounds=rounds).items()}


def _close_to_the_best(found: dict[str, float]) -> set[str]:
    return {name for name, time in found.items() if time <= _CLOSE * min(found.values())}


def _operand(problem: Problem, matrix: Matrix) -> torch.Tensor:
    """Random values that lie as a problem says."""
    sizes = (*problem.batch, matrix.rows, matrix.columns)
    strides = (*matrix.batch_strides, matrix.row_stride, matrix.column_stride)
    length = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    shift = matrix.alignment // matrix.dtype.itemsize % (16 // matrix.dtype.itemsize)
    values = random_tensor((length + shift,), matrix.dtype, "cuda")
    return values.as_strided(sizes, strides, shift)


def mean_regret(tuned: Iterable[Tuned]) -> float:
    return statistics.geometric_mean([each.regret for each in tuned])
