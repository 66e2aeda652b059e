"""Random products on this machine's GPU, each compared with float64: every type, layout, batch, epilogue and accuracy.

    export PYTHONPATH=src:tests/support:tests/gpu
    python3 scripts/fuzz_gpu.py                     # 20,000 of them, in at most eight minutes
    python3 scripts/fuzz_gpu.py --seed 3 --problems 500
    python3 scripts/fuzz_gpu.py --seed 3 --only 41  # one of them again

First all are planned and their kernels compiled, by processes without a GPU; then as many processes multiply. A product
that is wrong has a line with the command that repeats it, and the run ends with 1.
"""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import click
import torch
from crew import Crew
from drawn_calls import multiply, tensors_of
from drawn_cases import RELATED, drawn
from drawn_plans import plans_of
from drawn_verdicts import exact_result, judged

from tilesmith.core.device import Device, installed
from tilesmith.core.plan import Kernel
from tilesmith.core.threads import cores
from tilesmith.runtime import cache, cubins

_MAX_JOBS: Final = 16
_BLOCK: Final = 2 * RELATED  # problems that one process takes at a time: related ones have kernels in common
_MAX_KEPT_BYTES: Final = 3 << 30  # of each process's allocator
_SHOWN_EVERY: Final = 5.0  # seconds
_SHOWN_FAILURES: Final = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """One product, done."""

    index: int
    family: str
    accuracy: str
    types: str
    call: str
    worst: float
    problem: str | None
    described: str


@click.command()
@click.option("--problems", default=20_000, show_default=True, help="How many to draw.")
@click.option("--seed", default=0, show_default=True, help="Another seed draws others.")
@click.option("--seconds", default=480.0, show_default=True, help="The run ends after so many, done or not.")
@click.option("--jobs", default=min(cores(), _MAX_JOBS), show_default=True, help="Processes at the same time.")
@click.option("--only", type=int, help="The index of the one to do.")
def main(problems: int, seed: int, seconds: float, jobs: int, only: int | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("this needs an NVIDIA GPU, and torch finds none")
    gpu = installed(0)
    if only is not None:
        sys.exit(_repeat(seed, only, gpu))
    start = time.monotonic()
    before = sum(1 for _ in cache.entries())
    _compile_all(range(problems), seed, gpu, jobs, start)
    compiled_after = time.monotonic() - start
    blocks = [range(first, min(first + _BLOCK, problems)) for first in range(0, problems, _BLOCK)]
    crew = Crew(partial(_judge, seed, gpu), partial(_lost, seed, gpu), jobs)
    outcomes: list[Outcome] = []
    failures: list[int] = []
    for outcome in _shown(crew.answers(blocks, seconds - compiled_after), problems, start):
        outcomes.append(outcome)
        if outcome.problem is not None:
            failures.append(outcome.index)
            if len(failures) <= _SHOWN_FAILURES:
                _print_failure(outcome, seed)
    compiled = sum(1 for _ in cache.entries()) - before
    _print_summary(outcomes)
    click.echo(
        f"{len(outcomes)} of {problems} problems of seed {seed} in {time.monotonic() - start:.0f} s, of which "
        f"{compiled_after:.0f} s to plan and compile; {compiled} kernels compiled"
    )
    if len(outcomes) < problems:
        click.echo(f"The time was over before {problems - len(outcomes)} of them.")
    indices = ", ".join(map(str, sorted(failures)))
    click.echo(f"{len(failures)} are wrong: {indices}" if failures else "All that were done are right.")
    sys.exit(1 if failures or not outcomes else 0)


# Before anything runs.


def _compile_all(indices: range, seed: int, gpu: Device, jobs: int, start: float) -> None:
    """Each kernel once, however many problems and processes need it."""
    parts = [indices[first::jobs] for first in range(jobs)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(partial(_kernels_of, seed, gpu), parts)
        kernels = list(dict.fromkeys(kernel for some in found for kernel in some))
        _say(f"planned {len(indices)} problems: {len(kernels)} kernels, {time.monotonic() - start:.0f} s")
        for done, _ in enumerate(pool.map(partial(_compile, gpu.arch), kernels, chunksize=4), 1):
            if done % 500 == 0 or done == len(kernels):
                _say(f"compiled {done} of {len(kernels)} kernels, {time.monotonic() - start:.0f} s")


def _kernels_of(seed: int, gpu: Device, indices: range) -> list[Kernel]:
    torch.set_num_threads(1)
    plans = (plans_of(drawn(seed, index), gpu) for index in indices)
    return list(dict.fromkeys(kernel for planned in plans for kernel in planned.kernels))


def _compile(arch: str, kernel: Kernel) -> None:
    cubins.cubin(kernel, arch)


# One problem.


def _judge(seed: int, gpu: Device) -> Callable[[int], tuple[Outcome, bool]]:
    """What a process does with an index. After an error of CUDA, it can do nothing more."""
    torch.set_num_threads(1)

    def answer_for(index: int) -> tuple[Outcome, bool]:
        try:
            outcome = _done(seed, index, gpu)
            if torch.cuda.memory_reserved() > _MAX_KEPT_BYTES:
                torch.cuda.empty_cache()
            return outcome, False
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return _lost(seed, gpu, index, reason), _is_broken()

    return answer_for


def _done(seed: int, index: int, gpu: Device) -> Outcome:
    case = drawn(seed, index)
    planned = plans_of(case, gpu)
    tensors = tensors_of(case, "cuda")
    exact = exact_result(case, tensors)
    verdict = judged(case, planned, tensors, exact, multiply(case, planned, tensors))
    described = f"{case}, {planned.plan.name}"
    how = (planned.family, case.resolved, case.types, case.call)
    return Outcome(index, *how, verdict.worst, verdict.problem, described)


def _lost(seed: int, gpu: Device, index: int, reason: str) -> Outcome:
    """One that has no result."""
    case = drawn(seed, index)
    family = plans_of(case, gpu).family
    return Outcome(index, family, case.resolved, case.types, case.call, math.inf, reason, str(case))


def _is_broken() -> bool:
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _repeat(seed: int, index: int, gpu: Device) -> int:
    """One problem in this process, with all that is known of it."""
    case = drawn(seed, index)
    planned = plans_of(case, gpu)
    click.echo(f"{case}\n{planned.plan.name}")
    for name in ("a", "b", "bias", "residual", "out"):
        click.echo(f"{name:9}{getattr(case, name)}")
    click.echo(f"packed {case.packed}, activation {case.activation}, {case.scale} times, {case.residual_scale} times")
    outcome = _done(seed, index, gpu)
    click.echo(f"worst {outcome.worst:.3g} of what it may be: {outcome.problem or 'right'}")
    return int(outcome.problem is not None)


# What is shown.


def _shown(outcomes: Iterable[Outcome], problems: int, start: float) -> Iterator[Outcome]:
    shown = time.monotonic()
    failures = 0
    for done, outcome in enumerate(outcomes, 1):
        failures += outcome.problem is not None
        yield outcome
        if time.monotonic() - shown > _SHOWN_EVERY or done == problems:
            shown = time.monotonic()
            _say(f"{done} of {problems}, {failures} wrong, {shown - start:.0f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_failure(outcome: Outcome, seed: int) -> None:
    command = f"python3 scripts/fuzz_gpu.py --seed {seed} --only {outcome.index}"
    click.echo(f"WRONG: {outcome.problem} ({outcome.described}); repeat it: {command}")


def _print_summary(outcomes: list[Outcome]) -> None:
    for heading in ("family", "accuracy", "types", "call"):
        click.echo(f"{heading:32}{'problems':>10}{'wrong':>8}{'worst error, of what it may be':>34}")
        for name in sorted({getattr(outcome, heading) for outcome in outcomes}):
            some = [outcome for outcome in outcomes if getattr(outcome, heading) == name]
            wrong = sum(outcome.problem is not None for outcome in some)
            worst = max(outcome.worst for outcome in some)
            click.echo(f"  {name:30}{len(some):>10}{wrong:>8}{worst:>34.3g}")


if __name__ == "__main__":
    main()
