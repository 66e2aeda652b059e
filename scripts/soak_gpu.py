"""Do results keep their bits on a busy GPU? 300 random products of every family, 300 times each, while another stream
is at work and memory comes and goes; called, called on another stream, and replayed from CUDA graphs.

    export PYTHONPATH=src:tests/support:tests/gpu
    python3 scripts/soak_gpu.py                                  # ten minutes at most
    python3 scripts/soak_gpu.py --seed 3 --only 4160 --times 5000  # one of them again

The first result of each is compared with float64, and all others with the first, bit for bit. A product that moved has
a line with the command that repeats it, and the run ends with 1.
"""

import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import click
import torch
from drawn_calls import Tensors, call_of, poison_result, tensors_of
from drawn_cases import Case, drawn
from drawn_plans import Planned, covering, plans_of
from drawn_verdicts import exact_result, judged
from guarded import INTEGER_OF_SIZE
from torch import Tensor

import tilesmith
from tilesmith.bench.ahead import compile_ahead
from tilesmith.core.device import Device, installed

_WAYS: Final = ("called", "called on another stream", "replayed from a graph")
_WEIGHTS: Final = (5, 2, 3)
_GRAPHS_FOR_ONE_IN: Final = 3  # problems: each graph keeps memory of its own
_CAPTURED_AGAIN: Final = 0.01  # of the replays
_MAX_HELD: Final = 24  # tensors that come and go
_CACHE_EMPTIED: Final = 0.0005  # of the visits: addresses are others from then on


@dataclass(slots=True)
class Soaked:
    """One product, and what it must always be."""

    case: Case
    planned: Planned
    tensors: Tensors
    call: Callable[[], Tensor]
    first: Tensor  # its bits
    has_graph: bool
    graph: torch.cuda.CUDAGraph | None = None
    graphed: Tensor | None = None  # where the graph leaves its result

    @property
    def described(self) -> str:
        return f"{self.case}, {self.planned.plan.name}"


@dataclass(slots=True)
class Noise:
    """Work that another stream always has: products of torch's and of ours, and copies."""

    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)
    ended: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    half: Tensor = field(default_factory=lambda: torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16))
    whole: Tensor = field(default_factory=lambda: torch.randn(1024, 1024, device="cuda"))
    source: Tensor = field(default_factory=lambda: torch.randn(1 << 24, device="cuda"))
    target: Tensor = field(default_factory=lambda: torch.empty(1 << 24, device="cuda"))

    def go_on(self) -> None:
        """Launches more, once what was launched is done."""
        if not self.ended.query():
            return
        with torch.cuda.stream(self.stream):
            for _ in range(4):
                torch.matmul(self.half, self.half)
                tilesmith.matmul(self.half, self.half.T)
                tilesmith.matmul(self.whole, self.whole)
                self.target.copy_(self.source)
            self.ended.record(self.stream)


@click.command()
@click.option("--problems", default=300, show_default=True, help="How many products.")
@click.option("--times", default=300, show_default=True, help="How often each is done.")
@click.option("--seconds", default=600.0, show_default=True, help="The run ends after so many, done or not.")
@click.option("--seed", default=0, show_default=True, help="Another seed draws others.")
@click.option("--only", type=int, help="The index of the one to do.")
def main(problems: int, times: int, seconds: float, seed: int, only: int | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("this needs an NVIDIA GPU, and torch finds none")
    start, gpu, rng = time.monotonic(), installed(0), random.Random(seed)
    chosen = covering(seed, problems, gpu) if only is None else [_one(seed, only, gpu)]
    compile_ahead((plan for _, planned in chosen for plan in (planned.plan, *planned.packs) if plan), gpu.arch)
    _say(f"{len(chosen)} products, their kernels compiled after {time.monotonic() - start:.0f} s")
    noise = Noise()
    torch.cuda.synchronize()  # another stream is to read what this one fills
    wrong = 0
    soaked: list[Soaked] = []
    for number, (case, planned) in enumerate(chosen):
        noise.go_on()
        one, problem = _begun(case, planned, has_graph=number % _GRAPHS_FOR_ONE_IN == 0)
        soaked.append(one)
        wrong += problem is not None
        if problem is not None:
            click.echo(f"WRONG: {problem} ({one.described}); repeat it: {_command(case, 'fuzz_gpu')}")
    moved = torch.zeros(len(soaked), len(_WAYS), dtype=torch.int64, device="cuda")
    held: deque[Tensor] = deque(maxlen=_MAX_HELD)
    rounds = 0
    while rounds < times and time.monotonic() - start < seconds:
        for which in rng.sample(range(len(soaked)), len(soaked)):
            noise.go_on()
            _come_and_go(held, rng)
            _visit(soaked[which], moved[which], rng)
        rounds += 1
        if rounds % 10 == 0 or rounds == times:
            _say(f"{rounds} rounds, {int(moved.sum())} moved, {time.monotonic() - start:.0f} s")
    _finish(soaked, moved.tolist(), wrong, rounds, time.monotonic() - start)


def _one(seed: int, index: int, gpu: Device) -> tuple[Case, Planned]:
    case = drawn(seed, index)
    return case, plans_of(case, gpu)


def _begun(case: Case, planned: Planned, *, has_graph: bool) -> tuple[Soaked, str | None]:
    """A product after its first call, and what is wrong with that, if anything is."""
    tensors = tensors_of(case, "cuda")
    exact = exact_result(case, tensors)
    call = call_of(case, planned, tensors)
    poison_result(case, tensors)
    result = call()
    verdict = judged(case, planned, tensors, exact, result)
    return Soaked(case, planned, tensors, call, _bits(result).clone(), has_graph), verdict.problem


def _bits(x: Tensor) -> Tensor:
    return x.view(INTEGER_OF_SIZE[x.itemsize])


def _visit(one: Soaked, moved: Tensor, rng: random.Random) -> None:
    """Multiplies once more, in some way, and counts on the GPU if the result is another."""
    way = rng.choices(range(len(_WAYS)), _WEIGHTS)[0]
    if way == 2 and not one.has_graph:
        way = 0
    poison_result(one.case, one.tensors)
    if way == 0:
        result = one.call()
    elif way == 1:
        result = _on_another_stream(one.call)
    else:
        result = _replayed(one, rng)
    moved[way] += (_bits(result) != one.first).any()


def _on_another_stream(call: Callable[[], Tensor]) -> Tensor:
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    other.wait_stream(here)
    with torch.cuda.stream(other):
        result = call()
    here.wait_stream(other)
    result.record_stream(here)
    return result


def _replayed(one: Soaked, rng: random.Random) -> Tensor:
    if one.graph is None or rng.random() < _CAPTURED_AGAIN:
        torch.cuda.synchronize()  # the graph before may be under way
        one.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(one.graph):
            one.graphed = one.call()
    assert one.graphed is not None
    one.graphed.fill_(1)  # whatever a replay does not write is not what it was
    one.graph.replay()
    return one.graphed


def _come_and_go(held: deque[Tensor], rng: random.Random) -> None:
    """Memory is taken, written to and given back, in sizes of all kinds."""
    if rng.random() < 0.3:
        held.append(torch.full((round(2 ** rng.uniform(4, 23)),), float("nan"), device="cuda"))
    if held and rng.random() < 0.2:
        del held[rng.randrange(len(held))]
    if rng.random() < _CACHE_EMPTIED:
        torch.cuda.empty_cache()


def _finish(soaked: list[Soaked], moved: list[list[int]], wrong: int, rounds: int, seconds: float) -> None:
    """Prints what moved, and what was done of each family; ends the program."""
    families: dict[str, list[int]] = {}
    for one, counts in zip(soaked, moved, strict=True):
        of_family = families.setdefault(one.planned.family, [0, 0])
        of_family[0] += 1
        of_family[1] += any(counts)
        for way, count in zip(_WAYS, counts, strict=True):
            if count:
                again = _command(one.case, "soak_gpu")
                click.echo(f"MOVED: {count} times when {way} ({one.described}); repeat it: {again} --times 5000")
    click.echo(f"{'family':32}{'products':>10}{'moved':>8}")
    for family, (count, moving) in sorted(families.items()):
        click.echo(f"  {family:30}{count:>10}{moving:>8}")
    some_moved = [one.case.index for one, counts in zip(soaked, moved, strict=True) if any(counts)]
    which = f": {', '.join(map(str, some_moved))}" if some_moved else ""
    done = f"{len(soaked)} products, {rounds} times each, in {seconds:.0f} s"
    click.echo(f"{done}: {wrong} wrong, {len(some_moved)} moved{which}")
    sys.exit(1 if wrong or some_moved or not rounds else 0)


def _command(case: Case, script: str) -> str:
    return f"python3 scripts/{script}.py --seed {case.seed} --only {case.index}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
