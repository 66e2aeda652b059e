"""Fair timings: every competitor in one run, taken in turn, on a cold L2, medians."""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of each round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def interleaved(
    competitors: Mapping[str, Callable[[], object]], *, rounds: int = 20, warmups: int = 3, seed: int = 0
) -> dict[str, Timing]:
    """Times each competitor once a round, in a random order, with L2 flushed before each."""
    device = torch.cuda.current_device()
    flush = torch.empty(4 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.uint8, device="cuda")
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
            flush.zero_()
            start.record()
            competitors[name]()
            end.record()
            events[name].append((start, end))
        torch.cuda.synchronize()
    return {name: Timing(tuple(start.elapsed_time(end) for start, end in pairs)) for name, pairs in events.items()}
