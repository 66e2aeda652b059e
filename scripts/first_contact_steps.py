"""What a new process does when it meets products for the first time, and how long that takes: one program, one JSON
object of seconds on stdout. `first_contact.py` starts it; the package is imported only when a program asks for it.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from torch import Tensor, nn

Seconds = dict[str, float]

_WIDTH, _HEADS, _LAYERS, _VOCABULARY = 768, 12, 4, 50257
_PASSES: Final = 3  # over shapes that are planned anew


@dataclass(frozen=True, slots=True)
class Start:
    """Who multiplies what, with which kernels compiled ahead."""

    program: str
    dtype: str
    is_ours: bool
    archives: tuple[str, ...]  # and no others, wherever they lie
    device: str = "cuda"
    shrinks: int = 1  # sizes are divided by this, and there are as many fewer of them

    @property
    def type(self) -> torch.dtype:
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]

    def tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.type)

    def finish(self) -> None:
        """Waits for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds_of(self, do: Callable[[], object], *, waits: bool = True) -> float:
        """From an idle GPU to an idle GPU, or without `waits` to the return of the call."""
        self.finish()
        start = time.perf_counter()
        do()
        if waits:
            self.finish()
        return time.perf_counter() - start

    def multiplier(self) -> Callable[[Tensor, Tensor], Tensor]:
        """torch's product or ours, which is imported here."""
        if not self.is_ours:
            return torch.matmul
        import tilesmith

        self._find_archives()
        return tilesmith.matmul

    def around(self) -> AbstractContextManager[object]:
        """An override, if products are to be ours."""
        if not self.is_ours:
            return nullcontext()
        import tilesmith

        self._find_archives()
        return tilesmith.override()

    def _find_archives(self) -> None:
        from tilesmith.runtime import archive

        @cache
        def opened() -> list[archive.Archive]:  # when the first kernel is asked for, as ever
            return [archive.Archive(Path(path)) for path in self.archives]

        archive.installed = lambda arch: opened()


def training(start: Start) -> Seconds:
    """Steps of a small language model, forward, backward and optimizer."""
    model, rows = _language_model(start), 1024 // start.shrinks
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with start.around():
        times = [start.seconds_of(partial(step, x)) for x in (start.tensor(4, rows, _WIDTH) for _ in range(8))]
    return {"first step": times[0], "second step": times[1], "median of later steps": statistics.median(times[3:])}


def lengths(start: Start) -> Seconds:
    """The same model without gradients, on sequences that each have a length of their own."""
    model = _language_model(start)
    rows = [(192 + 65 * i) // start.shrinks + 1 for i in range(40 // start.shrinks)]
    with torch.no_grad(), start.around():
        times = [start.seconds_of(partial(model, x)) for x in (start.tensor(1, count, _WIDTH) for count in rows)]
    return {"all lengths": sum(times), "median step": statistics.median(times), "worst step": max(times)}


def rows(start: Start) -> Seconds:
    """One weight, and a new number of rows each time."""
    multiply = start.multiplier()
    times = [start.seconds_of(partial(multiply, a, b)) for a, b in _row_counts(start)]
    return {"all row counts": sum(times), "worst call": max(times), "median call": statistics.median(times)}


def planning(start: Start) -> Seconds:
    """From a call to the return of its launch, for shapes that were forgotten, once all kernels are loaded."""
    multiply = start.multiplier()
    found: Seconds = {}
    for name, pairs in (("rows", list(_row_counts(start))), ("random shapes", list(_random_shapes(start)))):
        for a, b in pairs:
            multiply(a, b)
        times = []
        for _ in range(_PASSES):
            if start.is_ours:
                _forget_plans()
            times += [start.seconds_of(partial(multiply, a, b), waits=False) for a, b in pairs]
        found[f"{name}, median"] = statistics.median(times)
        found[f"{name}, p99"] = sorted(times)[int(len(times) * 0.99)]
    return found


def call(start: Start) -> Seconds:
    """A single product, and before it the import of the package."""
    size = 4096 // start.shrinks
    a, b = start.tensor(size, size), start.tensor(size, size)
    before = time.perf_counter()
    multiply = start.multiplier()
    importing = time.perf_counter() - before
    calling = start.seconds_of(lambda: multiply(a, b))
    return {"import and call": importing + calling, "the call of these": calling}


PROGRAMS: Final = {program.__name__: program for program in (training, lengths, rows, planning, call)}


def _language_model(start: Start) -> nn.Module:
    layers = [
        nn.TransformerEncoderLayer(
            *(_WIDTH, _HEADS, 4 * _WIDTH), dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        for _ in range(_LAYERS)
    ]
    vocabulary = nn.Linear(_WIDTH, _VOCABULARY // start.shrinks, bias=False)
    return nn.Sequential(*layers, vocabulary).to(start.device, start.type)


def _row_counts(start: Start) -> Iterator[tuple[Tensor, Tensor]]:
    size = 4096 // start.shrinks
    b = start.tensor(size, size).mT
    return ((start.tensor(17 + 13 * i, size), b) for i in range(150 // start.shrinks))


def _random_shapes(start: Start) -> Iterator[tuple[Tensor, Tensor]]:
    rng = Random(3)
    for _ in range(30 // start.shrinks + 1):
        m, k, n = (round(2 ** rng.uniform(4, 12)) // start.shrinks + 1 for _ in range(3))
        yield start.tensor(m, k), start.tensor(k, n)


def _forget_plans() -> None:
    from tilesmith.runtime import executor

    executor._compiled.clear()


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    start = Start(**{**arguments, "archives": tuple(arguments["archives"])})
    torch.manual_seed(0)
    start.tensor(1)
    start.finish()  # there is a CUDA context
    print(json.dumps(PROGRAMS[start.program](start)))


if __name__ == "__main__":
    main()
