"""`tilesmith.override` on CUDA tensors. What it computes is also tested without a GPU, in the emulator."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import tilesmith
from tilesmith.overriding.operators import NAMES


def registered() -> dict[str, str]:
    return {name: torch._C._dispatch_dump_table(f"aten::{name}") for name in NAMES}


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    before = registered()
    yield
    assert registered() == before


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 333, 1024])
def test_every_overload_is_as_exact_as_torchs(size: int, dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(2, size, size, device="cuda").to(dtype) for _ in range(3))
    wide = None if dtype == torch.float32 else torch.float32

    def run() -> list[Tensor]:
        out, batch = torch.empty_like(a[0]), torch.empty_like(a)
        results = [
            torch.mm(a[0], b[0]),
            torch.mm(a[0], b[0].T, out=out).clone(),
            torch.bmm(a, b),
            torch.bmm(a.mT, b, out=batch).clone(),
            torch.addmm(c[0, 0], a[0], b[0], alpha=0.5),
            torch.addmm(c[0], a[0], b[0], beta=2, out=out),
            torch.baddbmm(c, a, b, beta=-1, out=batch),
        ]
        if wide is not None:
            results += [torch.mm(a[0], b[0], out_dtype=wide), torch.bmm(a, b, out_dtype=wide)]
        return results

    x, y, z = a.double(), b.double(), c.double()
    exact = [
        *(x[0] @ y[0], x[0] @ y[0].T, x @ y, x.mT @ y, z[0, 0] + 0.5 * (x[0] @ y[0]), 2 * z[0] + x[0] @ y[0]),
        *(-z + x @ y, x[0] @ y[0], x @ y),
    ]
    torchs = run()
    with tilesmith.override():
        ours = run()
    for found, other, reference in zip(ours, torchs, exact, strict=False):
        assert found.dtype == other.dtype and found.shape == other.shape and found.stride() == other.stride()
        assert error(found, reference) <= 1.05 * error(other, reference) + 1e-8
    assert tilesmith.stats().calls("tilesmith") >= 4, tilesmith.stats()


def test_a_training_step_has_its_backward_pass_in_the_override_too() -> None:
    """Which runs in a thread of autograd's."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
    x = torch.randn(192, 256, device="cuda")

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x).square().mean(), tuple(model.parameters()))

    expected = step()
    with tilesmith.override():
        found = step()
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-4, atol=1e-5)
    ways = {(each.operator, each.where) for each in tilesmith.stats().entries}
    assert ways == {("addmm", "tilesmith"), ("mm", "tilesmith")}, tilesmith.stats()
    assert tilesmith.stats().calls("tilesmith") == 5


@pytest.mark.parametrize("autocast", [False, True])
def test_modules_of_torch(autocast: bool) -> None:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True).cuda()
    x = torch.randn(4, 50, 128, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        expected = layer(x)
        with tilesmith.override():
            found = layer(x)
    tolerance = 5e-2 if autocast else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert tilesmith.stats().calls("tilesmith") + tilesmith.stats().calls("torch") > 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_programs(mode: str) -> None:
    linear, x = nn.Linear(256, 512).cuda(), torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        expected = torch.relu(linear(x)) @ linear.weight
        compiled = torch.compile(lambda x: torch.relu(linear(x)) @ linear.weight, fullgraph=True, mode=mode)
        with tilesmith.override():
            for _ in range(4):
                found = compiled(x).clone()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert tilesmith.stats().calls("tilesmith") >= 2, tilesmith.stats()


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
    with tilesmith.override(times=True):
        for _ in range(3):
            a @ a
        a.double() @ a.double()
    assert all(each.seconds is not None and 0 < each.seconds < 1 for each in tilesmith.stats().entries)
