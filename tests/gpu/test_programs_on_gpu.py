"""Programs as PyTorch runs them, with products by `tilesmith.matmul` or under `tilesmith.override`, on a GPU."""

import programs
import pytest
import torch
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(way: Way, dtype: torch.dtype) -> None:
    programs.check_autocast(way, dtype)
    assert_taken(way)


def test_transforms_of_functions(way: Way) -> None:
    programs.check_functions(way)
    assert_taken(way)


def test_deterministic_mode(way: Way) -> None:
    programs.check_deterministic_mode(way)
    assert_taken(way)


def test_inference_mode(way: Way) -> None:
    programs.check_inference_mode(way)
    assert_taken(way)


def test_gradients_twice(way: Way) -> None:
    programs.check_gradients_twice(way)
    assert_taken(way)


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])
def test_activation_checkpoints(way: Way, reentrant: bool) -> None:
    programs.check_checkpoint(way, reentrant=reentrant)
    assert_taken(way)


def test_export(way: Way) -> None:
    programs.check_export(way)
    assert_taken(way)


@pytest.mark.parametrize("name", programs.MODULES)
def test_modules_of_torch(name: str) -> None:
    programs.check_module("cuda", name)


@pytest.mark.parametrize("name", programs.LINEAR_ALGEBRA)
def test_linear_algebra_of_torch(name: str) -> None:
    programs.check_linear_algebra("cuda", name)
