"""`tilesmith.emulate`: the same calls as on a GPU, on CPU tensors."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tilesmith
from tilesmith.emulator import active

pytestmark = pytest.mark.usefixtures("emulator_cache")


def test_a_product_comes_from_the_kernels() -> None:
    a, b = torch.full((5, 2), 2.0**-13), torch.tensor([[1.0], [2.0**-13]]).expand(2, 3)
    a[:, 0] = 1.0
    with tilesmith.emulate(), torch.no_grad():
        exact = tilesmith.matmul(a, b)
        chain = tilesmith.matmul(a, b, accuracy="ieee")
    assert torch.equal(exact, chain)
    assert torch.equal(exact, torch.full((5, 3), 1.0 + 2.0**-26))


def test_types_that_the_kernels_do_not_have_raise_as_on_a_gpu() -> None:
    a = torch.ones(2, 2, dtype=torch.complex64)
    assert tilesmith.matmul(a, a).dtype == torch.complex64
    with tilesmith.emulate(), pytest.raises(NotImplementedError, match="complex64"):
        tilesmith.matmul(a, a)


def test_empty_and_one_dimensional_products() -> None:
    with tilesmith.emulate():
        assert tilesmith.matmul(torch.ones(0, 3), torch.ones(3, 2)).shape == (0, 2)
        assert torch.equal(tilesmith.matmul(torch.ones(2, 0), torch.ones(0, 2)), torch.zeros(2, 2))
        assert tilesmith.matmul(torch.ones(3), torch.ones(3)) == 3


def test_it_nests_and_leaves_no_trace() -> None:
    assert active() is None
    with tilesmith.emulate("h200"):
        with tilesmith.emulate("t4", seed=3):
            inner = active()
            assert inner is not None and (inner.device.capability, inner.seed) == ((7, 5), 3)
        outer = active()
        assert outer is not None and outer.device.capability == (9, 0)
    with pytest.raises(ZeroDivisionError), tilesmith.emulate():
        1 / 0  # noqa: B018
    assert active() is None


def test_threads_have_their_own() -> None:
    with tilesmith.emulate(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(active).result() is None


def test_threads_may_multiply_at_the_same_time() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 10)

    def multiply(seed: int) -> torch.Tensor:
        with tilesmith.emulate(seed=seed):
            return tilesmith.matmul(a, b)

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(multiply, range(4))
    assert all(torch.equal(first, other) for other in others)


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="h300"), tilesmith.emulate("h300"):
        pass
