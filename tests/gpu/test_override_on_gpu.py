"""`tilesmith.override` on CUDA tensors. What it computes is also tested without a GPU, in the emulator."""

from collections.abc import Callable, Iterator
from time import perf_counter

import pytest
import torch
from torch import Tensor, nn

import tilesmith
from tilesmith.bench.errors import error
from tilesmith.bench.precision import bounds_of_product
from tilesmith.override.operators import NAMES


def registered() -> dict[str, str]:
    return {name: torch._C._dispatch_dump_table(f"aten::{name}") for name in NAMES}


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    before = registered()
    yield
    assert registered() == before


def beside(alpha: float, a: Tensor, beta: float, c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is `alpha * a @ b + beta * c`: its error has the measures of any product's."""
    a, b = a.double(), b.double()
    identity = torch.eye(a.shape[-2], dtype=torch.float64, device=a.device).expand(*a.shape[:-1], a.shape[-2])
    c = c.double().expand(*a.shape[:-1], b.shape[-1])
    return torch.cat([alpha * a, beta * identity], -1), torch.cat([b, c], -2)


def assert_promise(ours: Tensor, torchs: Tensor, a: Tensor, b: Tensor, *, is_sum: bool = False) -> None:
    """What docs/accuracy.md promises of float32, and the explanation of a plan of the others."""
    found, other = error(ours, a, b), error(torchs, a, b)
    message = f"{found} where torch has {other}"
    if ours.dtype != torch.float32:
        assert found.norm <= 1.05 * other.norm, message
    elif a.dtype != torch.float32 and not is_sum:
        sums_in_float32 = bounds_of_product(a.shape[-1], other.comp)["fp32"]
        assert found.comp <= sums_in_float32, message
    else:
        one_rounding = 2.0**-24 if is_sum else 0.0
        assert found.norm <= max(other.norm, 3e-7) + one_rounding, message
        assert found.comp <= max(other.comp, 1e-6) + one_rounding, message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [64, 333, 1024])
def test_every_overload_keeps_the_promise(size: int, dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(2, size, size, device="cuda").to(dtype) for _ in range(3))
    out, batch = torch.empty_like(a[0]), torch.empty_like(a)
    products: list[tuple[Callable[[], Tensor], Tensor, Tensor]] = [
        (lambda: torch.mm(a[0], b[0]), a[0], b[0]),
        (lambda: torch.mm(a[0], b[0].T, out=out).clone(), a[0], b[0].T),
        (lambda: torch.bmm(a, b), a, b),
        (lambda: torch.bmm(a.mT, b, out=batch).clone(), a.mT, b),
    ]
    if dtype != torch.float32:
        products += [
            (lambda: torch.mm(a[0], b[0], out_dtype=torch.float32), a[0], b[0]),
            (lambda: torch.bmm(a, b, out_dtype=torch.float32), a, b),
        ]
    sums: list[tuple[Callable[[], Tensor], Tensor, Tensor]] = [
        (lambda: torch.addmm(c[0, 0], a[0], b[0], alpha=0.5), *beside(0.5, a[0], 1, c[0, 0], b[0])),
        (lambda: torch.addmm(c[0], a[0], b[0], beta=2, out=out).clone(), *beside(1, a[0], 2, c[0], b[0])),
        (lambda: torch.baddbmm(c, a, b, beta=-1, out=batch).clone(), *beside(1, a, -1, c, b)),
    ]
    taken = 0
    for call, left, right in [*products, *sums]:
        torchs = call()
        with tilesmith.override():
            ours = call()
        assert (ours.dtype, ours.shape, ours.stride()) == (torchs.dtype, torchs.shape, torchs.stride())
        assert_promise(ours, torchs, left, right, is_sum=left.dtype == torch.float64)
        taken += tilesmith.stats().calls("tilesmith")
    assert taken >= 4


def test_a_training_step_has_its_backward_pass_in_the_override_too() -> None:
    """Which runs in a thread of autograd's."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
    x = torch.randn(192, 256, device="cuda")

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x).square().mean(), tuple(model.parameters()))

    expected = step()
    with tilesmith.override():
        found = step()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    ways = {(each.operator, each.where) for each in tilesmith.stats().entries}
    assert ways == {("addmm", "tilesmith"), ("mm", "tilesmith")}, tilesmith.stats()
    assert tilesmith.stats().calls("tilesmith") == 5


def test_graphs_and_streams() -> None:
    a, b = torch.randn(128, 256, device="cuda"), torch.randn(256, 64, device="cuda")
    with tilesmith.override():
        expected = a @ b
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = a @ b
            cold = torch.randn(77, 91, device="cuda", dtype=torch.float16) @ torch.ones(91, 33, device="cuda").half()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)
    assert cold.shape == (77, 33)


def test_times_on_request() -> None:
    a = torch.randn(512, 512, device="cuda")
    started = perf_counter()
    with tilesmith.override(times=True):
        for _ in range(3):
            a @ a
        a.double() @ a.double()
    seconds = [each.seconds for each in tilesmith.stats().entries]
    assert len(seconds) == 2
    assert all(each is not None and each > 0 for each in seconds)
    assert sum(filter(None, seconds)) < perf_counter() - started
