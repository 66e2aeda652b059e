"""What a warm-up of a model loads: the kernels that an override needs from then on, all of them and at once."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from meta_tensors import meta

import tilesmith
from tilesmith import ahead
from tilesmith.core import device as devices
from tilesmith.core.device import Device, named
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.override import collecting, override
from tilesmith.planner import choose
from tilesmith.runtime import loading, registry


class Gpu:
    """Stands in for an executor, of CPU tensors here: it notes the plans that it is asked to run."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def gpu_of(self, tensor: torch.Tensor) -> Device:
        return named("h200")

    def compiled(self, plan: Plan, device_index: int) -> Any:
        self.plans.append(plan)
        zeros = torch.zeros(plan.problem.out_shape)
        return SimpleNamespace(add_bias=lambda *_: zeros) if plan.problem.epilogue else lambda *_: zeros

    def multiply(self, *_: object) -> Any:
        raise AssertionError("nobody asks")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ahead, "collecting", lambda accuracy: collecting.collecting(accuracy, "cpu"))
    before = registry.register("cpu", lambda: gpu)
    yield gpu
    registry.register("cpu", before)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The kernels of each time that some were loaded, by their entries and constants."""
    loads: list[set[str]] = []

    def loaded(kernels: list[Any], arch: str, device_index: int) -> None:
        loads.append(set(map(str, kernels)))

    monkeypatch.setattr(loading, "loaded", loaded)
    return loads


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 96, bias=False))


def kernels_of(plans: list[Plan]) -> set[str]:
    return {str(launch.kernel) for plan in plans for launch in plan.launches}


def train(module: torch.nn.Module, x: torch.Tensor) -> None:
    out = module(x)
    torch.autograd.grad(out, list(module.parameters()), torch.ones_like(out))


@pytest.mark.parametrize("backward", [False, True])
def test_it_loads_at_once_what_the_model_then_needs(gpu: Gpu, loads: list[set[str]], backward: bool) -> None:
    module, x = model(), torch.randn(640, 512)
    tilesmith.warmup(module, x, backward=backward)
    assert gpu.plans == []  # torch has multiplied
    with override():
        module(x) if not backward else train(module, x)
    assert len(gpu.plans) == (5 if backward else 2)
    (loaded,) = loads
    assert loaded == kernels_of(gpu.plans)
    assert all(each.grad is None for each in module.parameters())


def test_the_override_in_force_says_what_is_taken(gpu: Gpu, loads: list[set[str]]) -> None:
    module, x = model(), torch.randn(640, 512)
    with override(include="mm"):
        tilesmith.warmup(module, x)
        assert gpu.plans == []
        module(x)  # and it is in force again
    (loaded,) = loads
    assert len(gpu.plans) == 1
    assert loaded == kernels_of(gpu.plans)


def test_a_model_that_fails_leaves_everything_as_it_was(gpu: Gpu) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        tilesmith.warmup(model(), torch.randn(640, 500))
    assert registry.executor_on("cpu") is gpu
    assert torch.equal(torch.ones(2, 2) @ torch.ones(2, 2), torch.full((2, 2), 2.0))
    assert gpu.plans == []


def test_pairs_are_loaded_at_once(loads: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "installed", lambda _: named("h200"))
    shapes = [((4096, 1024), (1024, 512)), ((64, 64), (64, 64))]
    tilesmith.warmup(shapes)
    plans = [choose(Problem.of(*(torch.empty(s, device="meta") for s in pair)), named("h200")) for pair in shapes]
    (loaded,) = loads
    assert loaded == kernels_of(plans)


def test_pairs_may_have_an_epilogue(loads: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "installed", lambda _: named("h200"))
    tilesmith.warmup([((4096, 1024), (1024, 512))], dtype=torch.bfloat16, bias=True, activation="gelu", residual=True)
    a, b, bias, residual = (meta(*s, dtype=torch.bfloat16) for s in ((4096, 1024), (1024, 512), (512,), (4096, 512)))
    (loaded,) = loads
    assert loaded == kernels_of([choose(Problem.of(a, b, epilogue=Epilogue(bias, "gelu", residual)), named("h200"))])


def test_arguments_that_do_not_go_together_are_an_error(gpu: Gpu) -> None:
    with pytest.raises(TypeError, match="with pairs alone"):
        tilesmith.warmup(model(), torch.randn(640, 512), activation="gelu")
    with pytest.raises(TypeError, match=r"with a torch\.nn\.Module alone"):
        tilesmith.warmup([((2, 3), (3, 4))], torch.ones(2))
