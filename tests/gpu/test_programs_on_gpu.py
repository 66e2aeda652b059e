"""Programs as PyTorch runs them, with products by `tilesmith.matmul` or under `tilesmith.override`, on a GPU."""

from collections.abc import Callable

import programs
import pytest
from programs import Way

import tilesmith


@pytest.fixture(params=["matmul", "override"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param, "cuda")


def assert_taken(way: Way) -> None:
    """That the override was not passed by."""
    if way.of == "override":
        assert tilesmith.stats().calls("tilesmith") > 0, tilesmith.stats()


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_compiled(way: Way, mode: str) -> None:
    programs.check_compiled(way, mode=mode)
    if mode == "default":  # else Inductor may prefer kernels of its own to torch's operators
        assert_taken(way)


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("gradients", [False, True], ids=["value", "gradients"])
def test_compiled_into_cuda_graphs(way: Way, gradients: bool, mode: str) -> None:
    programs.check_compiled_again(way, gradients=gradients, mode=mode)


def test_compiled_with_dynamic_shapes(way: Way) -> None:
    programs.check_compiled_with_dynamic_shapes(way)
    assert_taken(way)


def test_cuda_graphs_of_training(way: Way) -> None:
    programs.check_graphed(way)
    assert_taken(way)


@pytest.mark.parametrize("check", programs.CHECKS.values(), ids=programs.CHECKS)
def test_what_a_program_is_put_through(way: Way, check: Callable[[Way], None]) -> None:
    check(way)
    assert_taken(way)


@pytest.mark.parametrize("name", programs.MODULES)
def test_modules_of_torch(name: str) -> None:
    programs.check_module("cuda", name)


@pytest.mark.parametrize("name", programs.LINEAR_ALGEBRA)
def test_linear_algebra_of_torch(name: str) -> None:
    programs.check_linear_algebra("cuda", name)
