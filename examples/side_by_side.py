"""What the examples share: one program with torch's products and with Tilesmith's, in turns, on one device."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch

import tilesmith
from tilesmith.bench.timing import float32_precision

Way = Callable[[], AbstractContextManager[None]]


@contextmanager
def torchs_fp32() -> Iterator[None]:
    with float32_precision("ieee"):
        yield


@contextmanager
def torchs_tf32() -> Iterator[None]:
    with float32_precision("tf32"):
        yield


@contextmanager
def ours() -> Iterator[None]:
    with float32_precision("ieee"), tilesmith.override():
        yield


@contextmanager
def device(is_small: bool) -> Iterator[torch.device]:
    """The GPU; or for a small problem the CPU, where the override then has the emulated kernels."""
    if is_small:
        with tilesmith.emulate():
            yield torch.device("cpu")
    elif torch.cuda.is_available():
        yield torch.device("cuda")
    else:
        raise SystemExit("this example needs an NVIDIA GPU; --small runs a tiny one on the CPU, by emulated kernels")


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "emulated kernels, whose times mean nothing"
    return f"{name}, torch {torch.__version__}"


def milliseconds(
    program: Callable[[], object], ways: Mapping[str, Way], device: torch.device, *, calls: int, rounds: int
) -> dict[str, float]:
    """Of one call, each way: the median of rounds in which all of them take their turn, warmed by a call before."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with way():
                program()
                wait(device)
                start = time.perf_counter()
                for _ in range(calls):
                    program()
                wait(device)
                samples[name].append((time.perf_counter() - start) / calls * 1e3)
    return {name: statistics.median(times) for name, times in samples.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference, relative to that of the exact one."""
    return float((found.double() - exact).norm() / exact.norm())
