"""Times side by side with torch, and the roofline that nothing can be above."""

import statistics
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from tilesmith.bench import timing
from tilesmith.core import roofline
from tilesmith.kernelbench.check import loading
from tilesmith.kernelbench.check.verdict import Speed, Spread

_ROUNDS: Final = 40
_WARM_ROUNDS: Final = 5
_OFFICIAL_ROUNDS: Final = 100
_OFFICIAL_WARMUPS: Final = 3

_NARROW: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
_QUERY: Final = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu"

# Taken before a candidate is loaded.
_interleaved = timing.interleaved
_float32_precision = timing.float32_precision
_leaves, _with_leaves, _has_nan = loading.leaves, loading.with_leaves, loading.has_nan


def measure(models: Mapping[str, Any], given: list[Any], *, official: bool) -> dict[str, list[float]]:
    """Milliseconds of each round for the candidate and for torch's models, which are named by precision class."""
    narrow = {}
    for name, dtype in _NARROW.items():
        if name in models:
            models[name].to(dtype)
            values = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in _leaves(given)]
            narrow[name] = _with_leaves(given, values)
    sets = {name: narrow.get(name, given) for name in models}
    competitors = {name: _call(model, name, sets[name]) for name, model in models.items()}
    with torch.no_grad():
        if official:
            return {name: _alone(name, call) for name, call in competitors.items()}
        return _in_turn(competitors, [_leaves(each) for each in (given, *narrow.values())])


def _alone(name: str, call: Callable[[], object]) -> list[float]:
    times = _interleaved({name: call}, rounds=_OFFICIAL_ROUNDS, warmups=_OFFICIAL_WARMUPS)
    return list(times[name].samples)


def _in_turn(competitors: Mapping[str, Callable[[], object]], sets: list[list[Any]]) -> dict[str, list[float]]:
    """Every round has other values in the same tensors: what was kept of the last one is of no use."""
    originals = [[x.clone() if isinstance(x, Tensor) else x for x in values] for values in sets]
    _interleaved(competitors, rounds=_WARM_ROUNDS)
    samples: dict[str, list[float]] = {name: [] for name in competitors}
    for round_ in range(_ROUNDS):
        for values, original in zip(sets, originals, strict=True):
            for x, before in zip(values, original, strict=True):
                if _has_nan(x):
                    torch.mul(before, 1 + (round_ + 1) / 128, out=x)
        for name, times in _interleaved(competitors, rounds=1, warmups=0, seed=round_).items():
            samples[name] += times.samples
    return samples


def _call(model: Any, name: str, values: list[Any]) -> Callable[[], object]:
    if name not in ("fp32", "tf32"):
        return lambda: model(*values)

    def call() -> object:
        with _float32_precision("tf32" if name == "tf32" else "ieee"):
            return model(*values)

    return call


def summarise(
    samples: Mapping[str, list[float]], work: Mapping[str, float], precision: str, *, official: bool
) -> Speed:
    """The samples of `measure` as what they mean on this machine's GPU."""
    spreads = {name: _spread(times) for name, times in samples.items()}
    candidate = spreads.pop("candidate")
    time = candidate.mean if official else candidate.median
    gpu: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    least_ms = roofline_ms(gpu, work, precision)
    return Speed(
        candidate=candidate,
        torch=spreads,
        tflops=work["flops"] / time * 1e-9,
        roofline_ms=least_ms,
        roofline_percent=None if least_ms is None else 100 * least_ms / time,
        gpu=gpu.name,
        state=_state(),
    )


def _spread(times: list[float]) -> Spread:
    lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
    return Spread(median=median, lower=lower, upper=upper, mean=statistics.fmean(times))


def roofline_ms(gpu: Any, work: Mapping[str, float], precision: str) -> float | None:
    """The least time for the work: all tensor cores busy at the highest clock, or all inputs read from memory and what
    L2 cannot hold of the results written. `gpu` is what torch calls the properties of a device."""
    rate = roofline.tensor_rate((gpu.major, gpu.minor), precision)
    peak = None if rate is None else roofline.Peak.of_properties(gpu)
    if peak is None:
        return None
    least = roofline.Work(flops=work["flops"], read_bytes=work["read"], written_bytes=work["written"])
    return 1e3 * roofline.Roofline.of(least, peak, rate).seconds


def _state() -> str:
    """Clocks and temperature now, if nvidia-smi tells them."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        sm, memory, highest, temperature = done.stdout.splitlines()[torch.cuda.current_device()].split(", ")
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "clocks and temperature are not known: nvidia-smi does not answer"
    return f"SM clock {sm} of at most {highest} MHz, memory {memory} MHz, {temperature} C, after the runs"
