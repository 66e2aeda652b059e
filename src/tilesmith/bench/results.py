"""What a benchmark measured: a frozen value that goes to JSON and comes back, and the numbers that follow from it.

Whatever is shown, in the terminal, on a page or in a comparison, is computed here from the samples.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

FORMAT: Final = 1  # of the JSON; a reader of another one refuses
OURS: Final = "ours"
TORCH: Final = "torch"
FLOAT32_FLOOR: Final = 3e-7  # an error in norm that float32 may have even where torch's is smaller
AGAIN: Final = "torch again"  # the same call under another name: how far apart two times of one thing are

Change = Literal["faster", "slower", "same"]
Bound = Literal["compute", "memory"]

_CONFIDENCE: Final = 1.96  # standard deviations: 95%
_MIN_CHANGE: Final = 0.01  # a smaller one is not worth a word, however certain it is
BEHIND: Final = 0.97  # of torch's speed: slower than that is slower
FAR_BEHIND: Final = 0.9
_LONG_MS: Final = 0.05  # a call of torch's that takes this long may take 5% longer under an override, a shorter one 15%
_NUMBERS: Final = re.compile(r"\[[\s\d.,e+-]*\]")  # a list of nothing else, in JSON


@dataclass(frozen=True, slots=True)
class Competitor:
    """One way to do a product, timed."""

    precision: str  # class: "fp32", "tf32", "fp16", "bf16", "fp64" or "int"
    samples_ms: tuple[float, ...]  # a round each, in order
    graph_ms: float | None = None  # the median time of one of many in a CUDA graph, where products are short
    comp: float | None = None  # errors against float64: see bench/errors.py; None for integers, and where not taken
    norm: float | None = None
    host_ms: float | None = None  # the median time until a call is issued, where the wall clock is read

    @property
    def median(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples_ms) < 2:
            return self.median, self.median
        lower, _, upper = statistics.quantiles(self.samples_ms, n=4, method="inclusive")
        return lower, upper

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the median, from the order of the samples alone.

        >>> Competitor("fp32", tuple(range(1, 101))).interval
        (41, 60)
        """
        ordered = sorted(self.samples_ms)
        count = len(ordered)
        away = _CONFIDENCE * math.sqrt(count) / 2
        first = max(math.floor(count / 2 - away), 0)
        last = min(math.ceil(count / 2 + away) - 1, count - 1)
        return ordered[first], ordered[max(last, first)]

    @property
    def uncertainty(self) -> float:
        """Half of that interval relative to the median."""
        lower, upper = self.interval
        return (upper - lower) / 2 / self.median


@dataclass(frozen=True, slots=True)
class State:
    """The GPU around a measurement, as NVML tells."""

    sm_mhz: tuple[int, int]  # before and after
    power_watts: float
    temperature_celsius: int
    throttled: tuple[str, ...] = ()  # why the clocks were held down, if they were


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest of all plans for a product."""

    plan: str
    regret: float  # the time of the plan that was taken, divided by this one's


@dataclass(frozen=True, slots=True)
class Entry:
    """One product, and everyone who did it in the same run."""

    suite: str  # "shapes" for those of the command line
    name: str
    shape: str  # as a person reads it: "128x(512x1024x2048) a transposed"
    m: int
    k: int
    n: int
    batch: int
    a_layout: str
    b_layout: str
    dtype: str
    accuracy: str | None  # of float32
    why: str
    plan: str
    workspace_bytes: int | None  # None where it was not noted
    flops: float
    least_bytes: float  # operands read once, the result written once
    roofline_ms: float | None  # of our precision class; None where the GPU's peak is not known
    bound: Bound | None
    competitors: dict[str, Competitor]
    state: State | None = None
    variant: str = ""  # what there is besides a product of two tensors: "linear, bias, gelu", "b packed"
    clock: str = "gpu"  # see suites.Clock
    tries_all: bool = False  # other plans too, if torch is faster
    fastest: Fastest | None = None  # of them

    @property
    def ours(self) -> Competitor:
        return self.competitors[OURS]

    @property
    def kind(self) -> str:
        """The type, and for float32 how exact it must be."""
        return f"{self.dtype} ({self.accuracy})" if self.accuracy else self.dtype

    @property
    def label(self) -> str:
        """What was done, in one line."""
        return f"{self.shape} {self.kind}" + (f" ({self.variant})" if self.variant else "")

    @property
    def opponents(self) -> tuple[str, ...]:
        """Those of our precision class, in order: a ratio to any other would mean nothing. The second torch is none."""
        others = (name for name in self.competitors if name not in (OURS, AGAIN))
        return tuple(name for name in others if self.competitors[name].precision == self.ours.precision)

    @property
    def tflops(self) -> float:
        return self.flops / self.ours.median * 1e-9

    @property
    def gigabytes_per_second(self) -> float:
        return self.least_bytes / self.ours.median * 1e-6

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte that must be moved."""
        return self.flops / self.least_bytes

    @property
    def roofline_share(self) -> float | None:
        return None if self.roofline_ms is None else self.roofline_ms / self.ours.median

    def ratio(self, other: str) -> float:
        """How many times as long as ours an opponent takes."""
        return self.competitors[other].median / self.ours.median

    def norms(self, other: str) -> tuple[float, float] | None:
        """Another's error and ours; None unless both are positive numbers, which have a logarithm."""
        theirs, ours = self.competitors[other].norm, self.ours.norm
        if theirs is None or ours is None or not (0 < theirs < math.inf and 0 < ours < math.inf):
            return None
        return theirs, ours

    def ratio_interval(self, other: str) -> tuple[float, float]:
        """Where the ratio lies if both medians lie in their intervals."""
        (our_least, our_most), (least, most) = self.ours.interval, self.competitors[other].interval
        return least / our_most, most / our_least

    @property
    def noise(self) -> float:
        """How far apart two times of one thing are here: what a change must exceed."""
        again = self.competitors.get(AGAIN)
        apart = abs(math.log(again.median / self.competitors[TORCH].median)) if again else 0.0
        return max(apart, _MIN_CHANGE)

    @property
    def is_slower(self) -> bool:
        """Than torch, by more than what does not count."""
        return self.ratio(TORCH) < BEHIND

    @property
    def best_ratio(self) -> float:
        """The ratio to torch that the fastest plan would have."""
        return self.ratio(TORCH) * (1.0 if self.fastest is None else self.fastest.regret)

    @property
    def is_behind(self) -> bool:
        """Whether a call by the wall clock takes longer than torch's by more than an override may."""
        allowed = 1.05 if self.competitors[TORCH].median > _LONG_MS else 1.15
        return self.ratio(TORCH) < 1 / allowed

    def verdict(self, other: str) -> Change:
        """Whether ours is faster than another one, beyond noise and chance."""
        return change(self.competitors[other], self.ours, self.noise)


def opponents(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Those of some entries, in order."""
    return tuple(dict.fromkeys(name for entry in entries for name in entry.opponents))


def change(old: Competitor, new: Competitor, noise: float) -> Change:
    """What became of a time: the medians must differ by more than the noise, and their intervals must not meet.

    >>> slow, fast = (Competitor("fp32", tuple(x + i / 1000 for i in range(20))) for x in (1.1, 1.0))
    >>> change(slow, fast, 0.01), change(fast, slow, 0.01), change(slow, fast, 0.2)
    ('faster', 'slower', 'same')
    """
    by = math.log(old.median / new.median)
    if by > noise and new.interval[1] < old.interval[0]:
        return "faster"
    if by < -noise and new.interval[0] > old.interval[1]:
        return "slower"
    return "same"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and how a run was made."""

    date: str
    command: str
    gpu: str
    driver: str
    versions: dict[str, str]  # of tilesmith, torch, CUDA, NVRTC, Python
    host: str  # its processor
    l2: Literal["flushed", "warm"]
    commit: str = ""  # of the source; "" where it was not noted
    note: str = ""  # what else a reader should know

    @property
    def facts(self) -> dict[str, str]:
        """The machine and its programs, by their names."""
        return {"GPU": self.gpu, "driver": self.driver, **self.versions, "processor": self.host}


@dataclass(frozen=True, slots=True)
class Results:
    """A run."""

    environment: Environment
    entries: tuple[Entry, ...]
    unfinished: tuple[str, ...] = ()  # what was not measured, and why

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.suite for entry in self.entries))

    @property
    def opponents(self) -> tuple[str, ...]:
        return opponents(self.entries)

    @property
    def bandwidth(self) -> float | None:
        """GB/s of the memory that the rooflines are of; None if no entry is bound by it. Where L2 keeps results, the
        bytes of an entry are more than those that memory moves, in no entry less."""
        rates = [x.least_bytes / x.roofline_ms * 1e-6 for x in self.entries if x.roofline_ms and x.bound == "memory"]
        return min(rates, default=None)

    @property
    def peaks(self) -> dict[str, float]:
        """TFLOP/s that the rooflines are of, by precision class. Classes with the same peak are one, "bf16, fp16";
        those without an entry that is bound by compute have none."""
        highest: dict[str, float] = {}
        for entry in self.entries:
            if entry.roofline_ms and entry.bound == "compute":
                precision, peak = entry.ours.precision, entry.flops / entry.roofline_ms * 1e-9
                highest[precision] = max(highest.get(precision, 0.0), float(f"{peak:.3g}"))
        peaks = sorted(set(highest.values()), reverse=True)
        return {", ".join(name for name in highest if highest[name] == peak): peak for peak in peaks}

    def mean_ratio(self, suite: str, other: str) -> float | None:
        """The geometric mean of a suite; None if no entry of it has this opponent."""
        ratios = [each.ratio(other) for each in self.entries if each.suite == suite and other in each.opponents]
        return statistics.geometric_mean(ratios) if ratios else None

    def write(self, path: Path) -> None:
        """Writes JSON, a line for each field: lists of numbers are not broken."""
        text = json.dumps({"format": FORMAT, **finite(asdict(self))}, indent=1, allow_nan=False)
        path.write_text(_NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """ValueError for a file that is none of ours."""
        try:
            data = json.loads(path.read_text())
            if data.pop("format") != FORMAT:
                raise ValueError("of another version")
            return cls(
                environment=Environment(**data["environment"]),
                entries=tuple(map(_entry, data["entries"])),
                unfinished=tuple(data["unfinished"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error) if isinstance(error, ValueError) else "it is JSON of another kind"
            raise ValueError(f"{path} has no results of tilesmith bench: {reason}") from error


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entry(data: dict[str, Any]) -> Entry:
    competitors = {
        name: Competitor(**{**each, "samples_ms": tuple(each["samples_ms"])})
        for name, each in data["competitors"].items()
    }
    state = data["state"]
    if state is not None:
        state = State(**{**state, "sm_mhz": tuple(state["sm_mhz"]), "throttled": tuple(state["throttled"])})
    fastest = data.get("fastest") and Fastest(**data["fastest"])
    return Entry(**{**data, "competitors": competitors, "state": state, "fastest": fastest})
