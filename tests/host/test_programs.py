"""Programs as PyTorch runs them, with products by the emulated kernels: `tilesmith.matmul` and `tilesmith.override`."""

from collections.abc import Callable, Iterator
from typing import Any

import programs
import pytest
import torch
from programs import Way

import tilesmith
from tilesmith.emulator import launch

pytestmark = pytest.mark.usefixtures("emulator_cache")


@pytest.fixture(autouse=True)
def ends_in_our_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever PyTorch makes of a program. An override leaves nothing to torch but products in place, and those in
    float64 that others are held against."""
    launched = []
    function = launch.function

    def counted(*arguments: Any) -> launch.Function:
        launched.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(launch, "function", counted)
    yield
    assert launched
    left = [each for each in tilesmith.stats().entries if each.where == "torch"]
    reasons = {each.reason for each in left if each.dtype != torch.float64}
    assert reasons <= {"an out in the memory of an operand"}, tilesmith.stats()


@pytest.fixture(params=["matmul", "override"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param, "cpu")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(way: Way, backend: str) -> None:
    programs.check_compiled(way, backend=backend)


def test_compiled_by_inductor(way: Way) -> None:
    programs.check_compiled(way, programs.products_of)


def test_compiled_by_max_autotune() -> None:
    """Which has nothing to choose from for our operator. Of torch's it makes kernels of its own."""
    programs.check_compiled(Way("matmul", "cpu"), programs.products_of, mode="max-autotune")


@pytest.mark.parametrize("gradients", [False, True], ids=["value", "gradients"])
def test_compiled_programs_may_be_called_again(way: Way, gradients: bool) -> None:
    programs.check_compiled_again(way, gradients=gradients, backend="aot_eager")


def test_compiled_with_dynamic_shapes(way: Way) -> None:
    programs.check_compiled_with_dynamic_shapes(way, backend="aot_eager")


@pytest.mark.parametrize("check", programs.CHECKS.values(), ids=programs.CHECKS)
def test_what_a_program_is_put_through(way: Way, check: Callable[[Way], None]) -> None:
    check(way)


@pytest.mark.parametrize("name", programs.MODULES)
def test_modules_of_torch(name: str) -> None:
    programs.check_module("cpu", name)


@pytest.mark.parametrize("name", programs.LINEAR_ALGEBRA)
def test_linear_algebra_of_torch(name: str) -> None:
    programs.check_linear_algebra("cpu", name)
