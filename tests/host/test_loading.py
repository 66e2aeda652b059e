"""Kernels are compiled and loaded once each, different ones at the same time, and none while a graph is captured."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tilesmith.core import threads
from tilesmith.core.device import named
from tilesmith.core.errors import ColdCaptureError
from tilesmith.core.plan import Kernel
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import cubins, driver, loading

ARCH = "sm_90a"


@dataclass
class Gpu:
    """Stands in for NVRTC and the driver, and counts."""

    compiled: Counter[Kernel] = field(default_factory=Counter)
    loaded: Counter[tuple[str, int]] = field(default_factory=Counter)
    meeting: threading.Barrier | None = None  # of as many compilers as must be at work at the same time
    is_capturing: bool = False

    def cubin(self, kernel: Kernel, arch: str) -> bytes:
        if self.meeting is not None:
            self.meeting.wait(timeout=30)
        self.compiled[kernel] += 1
        return b"cubin of " + kernel.entry.encode()

    def load(self, cubin: bytes, entry: str, shared_bytes: int, device_index: int) -> driver.Function:
        assert cubin == b"cubin of " + entry.encode()
        self.loaded[entry, device_index] += 1
        return driver.Function(object(), None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    monkeypatch.setattr(loading, "_functions", {})
    monkeypatch.setattr(cubins, "cubin", gpu.cubin)
    monkeypatch.setattr(threads, "cores", lambda: 16)
    monkeypatch.setattr(driver, "load", gpu.load)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.is_capturing)
    yield gpu


def kernels() -> list[Kernel]:
    """Those of a float32 product: four launches, of which no two have the same kernel."""
    a, b = torch.empty(4096, 4096, device="meta"), torch.empty(4096, 4096, device="meta")
    return [launch.kernel for launch in choose(Problem.of(a, b), named("h200")).launches]


def test_the_kernels_of_a_plan_are_compiled_at_the_same_time(gpu: Gpu) -> None:
    gpu.meeting = threading.Barrier(4)
    functions = loading.loaded(kernels(), ARCH, 0)
    assert len(set(map(id, functions))) == 4
    assert loading.loaded(kernels(), ARCH, 0) == functions
    assert set(gpu.compiled.values()) == {1}


def test_threads_that_ask_for_the_same_kernels_get_those_that_one_of_them_compiled(gpu: Gpu) -> None:
    start = threading.Barrier(8)
    found: list[Any] = []

    def ask() -> None:
        start.wait(timeout=30)
        found.append(loading.loaded(kernels(), ARCH, 0))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(found) == 8
    assert all(each == found[0] for each in found)
    assert set(gpu.compiled.values()) == {1}


def test_each_gpu_loads_its_own(gpu: Gpu) -> None:
    first, second = (loading.loaded(kernels()[:1], ARCH, index) for index in (0, 1))
    assert first != second
    assert {index for _, index in gpu.loaded} == {0, 1}


def test_a_compilation_that_failed_is_tried_again(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: Kernel, arch: str) -> bytes:
        raise RuntimeError("no NVRTC")

    with monkeypatch.context() as broken:
        broken.setattr(cubins, "cubin", fails)
        with pytest.raises(RuntimeError, match="no NVRTC"):
            loading.loaded(kernels(), ARCH, 0)
    assert len(loading.loaded(kernels(), ARCH, 0)) == 4


def test_a_capture_takes_what_is_loaded_and_nothing_else(gpu: Gpu) -> None:
    warm, *cold = kernels()
    loading.loaded([warm], ARCH, 0)
    gpu.is_capturing = True
    assert len(loading.loaded([warm], ARCH, 0)) == 1
    with pytest.raises(ColdCaptureError, match=r"tilesmith\.warmup"):
        loading.loaded([warm, *cold], ARCH, 0)
    assert gpu.compiled.total() == 1
