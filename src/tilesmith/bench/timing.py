"""Fair timings: every competitor in one run, taken in turn, on a cold L2, medians."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

import torch

_SAMPLE_SECONDS: Final = 3e-3  # of a loop of calls by the wall clock
_MAX_CALLS: Final = 2000  # of such a loop
_MAX_QUEUED_CALLS: Final = 20  # fewer launches than a stream's queue takes without making the host wait


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of each round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def interleaved(
    competitors: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 20,
    warmups: int = 3,
    seed: int = 0,
    warm_l2: bool = False,
) -> dict[str, Timing]:
    """Times each competitor once a round, in a random order, with L2 flushed before each, or as warm as it can be."""
    device = torch.cuda.current_device()
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    flush = torch.zeros(4 * l2_bytes // 4, dtype=torch.int32, device="cuda")
    order = list(competitors)
    shuffle = random.Random(seed).shuffle
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in order}
    for _ in range(warmups):
        for name in order:
            competitors[name]()
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.sum()  # reads: lines that it wrote would have to leave L2 during the measurement
            if warm_l2:
                competitors[name]()
            start.record()
            competitors[name]()
            end.record()
            events[name].append((start, end))
        torch.cuda.synchronize()
    return {name: Timing(tuple(start.elapsed_time(end) for start, end in pairs)) for name, pairs in events.items()}


@contextmanager
def float32_precision(name: str = "ieee") -> Iterator[None]:
    """torch's float32 products in float32, or in "tf32", whatever setting the environment brought."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = name
    try:
        yield
    finally:
        products.fp32_precision = before


def graphed(
    competitors: Mapping[str, Callable[[], object]], *, calls: int = 40, rounds: int = 20, seed: int = 0
) -> dict[str, Timing]:
    """Times each competitor as one of `calls` in a CUDA graph, on a warm L2: what a launch costs without the host."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, competitor in competitors.items():
        competitor()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(calls):
                competitor()
    order = list(competitors)
    shuffle = random.Random(seed).shuffle
    samples: dict[str, list[float]] = {name: [] for name in order}
    for round_ in range(rounds + 1):
        shuffle(order)
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            if round_ > 0:
                samples[name].append(start.elapsed_time(end) / calls)
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def by_wall_clock(
    competitors: Mapping[str, Callable[[], object]],
    around: Mapping[str, Callable[[], AbstractContextManager[None]]],
    *,
    rounds: int = 20,
    seed: int = 0,
    waits: bool = True,
) -> dict[str, Timing]:
    """Times loops of calls by the host's clock, each until the GPU is done or, without `waits`, until the last call is
    issued. `around` has what is to hold during a loop; to enter it takes no part of the time."""
    order = list(competitors)
    shuffle = random.Random(seed).shuffle
    calls: dict[str, int] = {}
    for name, call in competitors.items():
        with around[name]():
            call()
            rough = _seconds_a_call(call, 5, waits=True)
        most = _MAX_CALLS if waits else _MAX_QUEUED_CALLS
        calls[name] = min(most, max(1, round(_SAMPLE_SECONDS / rough)))
    samples: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            with around[name]():
                competitors[name]()
                samples[name].append(_seconds_a_call(competitors[name], calls[name], waits) * 1e3)
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def _seconds_a_call(call: Callable[[], object], calls: int, waits: bool) -> float:
    _wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if waits:
        _wait()
    return (time.perf_counter() - start) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
