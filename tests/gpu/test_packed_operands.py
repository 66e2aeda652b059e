"""Products with packed operands: bit for bit those of the tensors."""

import itertools

import pytest
import torch
from guarded import Guarded, assert_same

import tilesmith
from tilesmith.bench.distributions import operands
from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.runtime.executor import compiled

SIDES = [(True, False), (False, True), (True, True)]
DATA = ["normal", "graded slices of K", "infinities and NaNs", "exponents within 60"]


def packed_sides(
    a: torch.Tensor, b: torch.Tensor, sides: tuple[bool, bool], accuracy: str | None = None
) -> tuple[torch.Tensor | tilesmith.Packed, torch.Tensor | tilesmith.Packed]:
    return (
        tilesmith.pack(a, first=True, accuracy=accuracy) if sides[0] else a,
        tilesmith.pack(b, accuracy=accuracy) if sides[1] else b,
    )


def assert_same_in_every_configuration(a: torch.Tensor, b: torch.Tensor, sides: tuple[bool, bool]) -> None:
    """By the `hopper` family, in configurations of all kinds."""
    problem, with_packed = Problem.of(a, b), Problem.of(a, b, packed=sides)
    terms = [each.terms if isinstance(each, tilesmith.Packed) else None for each in packed_sides(a, b, sides)]
    kinds = {}
    for c in tiles.configurations(problem, installed(0)):
        if all(hopper.unsuited(each, installed(0), c) is None for each in (problem, with_packed)):
            kinds[c.swap_ab, c.split_k > 1, c.cluster] = c
    assert kinds
    for c in kinds.values():
        expected = compiled(hopper.plan(problem, installed(0), c), 0)(a, b)
        plan = hopper.plan(with_packed, installed(0), c)
        assert_same(compiled(plan, 0)(a, b, None, (terms[0], terms[1])), expected)


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_planes_that_were_packed_are_those_that_a_product_makes(name: str, sides: tuple[bool, bool]) -> None:
    for m, k, n in ((300, 500, 260), (137, 195, 263), (20, 9000, 263)):
        a, b = operands(name, m, k, n, "cuda")
        for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
            assert_same_in_every_configuration(x, y, sides)


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 130, 200), (3, 200, 150)),
        ((3, 1, 130, 200), (2, 200, 150)),
        ((130, 200), (2, 3, 200, 150)),
        ((2, 3, 4, 65, 100), (3, 1, 100, 72)),
    ],
    ids=str,
)
def test_batches(a: tuple[int, ...], b: tuple[int, ...], sides: tuple[bool, bool]) -> None:
    x, y = torch.randn(a, device="cuda"), torch.randn(b, device="cuda")
    assert_same_in_every_configuration(x, y, sides)
    assert_same_in_every_configuration(x.mT.contiguous().mT, y.mT.contiguous().mT, sides)


@pytest.mark.parametrize("strides", [(301, 1), (1, 205), (700, 2), (3, 700)], ids=str)
def test_strides_of_any_kind(strides: tuple[int, int]) -> None:
    """And nothing is written outside of the tensor."""
    x = Guarded.empty((200, 300), strides, torch.float32, 1)
    x.tensor.normal_()
    assert_same_in_every_configuration(x.tensor, torch.randn(300, 130, device="cuda"), (True, False))
    assert_same_in_every_configuration(torch.randn(130, 200, device="cuda"), x.tensor, (False, True))
    x.assert_outside_untouched()


@pytest.mark.parametrize("accuracy", ["fp32", "tf32", "ieee"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_matmul_takes_them(sides: tuple[bool, bool], accuracy: str) -> None:
    """Whatever is planned: products of a few rows use the tensor."""
    for m, k, n in ((1, 300, 200), (12, 1000, 500), (1000, 800, 900), (130, 20, 140), (3000, 64, 2000), (0, 5, 7)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        result = tilesmith.matmul(*packed_sides(a, b, sides, accuracy))
        assert result.shape == (m, n)
        expected = tilesmith.matmul(a, b, accuracy=accuracy)
        tolerance = 2e-3 if accuracy == "tf32" else 1e-5
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * k**0.5)
        vector = torch.randn(k, device="cuda")
        if sides == (False, True):
            result = tilesmith.matmul(vector, tilesmith.pack(b))
            torch.testing.assert_close(result, vector @ b, rtol=1e-5, atol=1e-5 * k**0.5)


def test_one_packed_weight_serves_many_shapes_and_streams() -> None:
    b = torch.randn(1024, 768, device="cuda")
    packed = tilesmith.pack(b)
    assert packed.nbytes >= b.nbytes
    for shape in ((300, 1024), (2, 3, 100, 1024), (1024,), (7, 1024), (64, 1024)):
        a = torch.randn(shape, device="cuda")
        torch.testing.assert_close(tilesmith.matmul(a, packed), a @ b, rtol=1e-5, atol=1e-3)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    a, _ = operands("graded slices of K", 300, 1024, 1, "cuda")  # wide: all of them write the same exponents
    expected = tilesmith.matmul(a, packed)
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(tilesmith.matmul(a, packed))
    torch.cuda.synchronize()
    for result in results:
        assert_same(result, expected)


def test_out_is_written() -> None:
    a, b = torch.randn(500, 700, device="cuda"), torch.randn(700, 600, device="cuda")
    packed = tilesmith.pack(b)
    out = torch.full((500, 600), float("nan"), device="cuda")
    assert tilesmith.matmul(a, packed, out=out) is out
    assert_same(out, tilesmith.matmul(a, packed))
    square = torch.randn(512, 512, device="cuda")
    weight = tilesmith.pack(torch.randn(512, 512, device="cuda"))
    expected = tilesmith.matmul(square, weight)
    assert_same(tilesmith.matmul(square, weight, out=square), expected)


@pytest.mark.parametrize("shape", [(400, 300), (5, 170, 300), (300,)], ids=str)
def test_gradients_of_the_other_operand(shape: tuple[int, ...]) -> None:
    b = torch.randn(300, 500, device="cuda")
    packed = tilesmith.pack(b)
    a = torch.randn(shape, device="cuda", requires_grad=True)
    result = tilesmith.matmul(a, packed)
    assert result.requires_grad
    assert_same(result.detach(), tilesmith.matmul(a.detach(), packed))
    weight = torch.randn_like(result)
    (gradient,) = torch.autograd.grad(result, a, weight)
    exact = weight.double() @ b.double().T
    assert ((gradient.double() - exact).norm() / exact.norm()).item() <= 1e-6
    first = tilesmith.pack(torch.randn(200, 300, device="cuda"), first=True)
    x = torch.randn(300, 40, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(tilesmith.matmul(first, x).sum(), x)
    torch.testing.assert_close(gradient, first.tensor.sum(0)[:, None].expand(300, 40), rtol=1e-4, atol=1e-4)


def test_gradients_of_second_order() -> None:
    b = torch.randn(64, 80, device="cuda")
    packed = tilesmith.pack(b)
    a = torch.randn(70, 64, device="cuda", requires_grad=True)
    second = []
    for result in (tilesmith.matmul(a, packed), a @ b):
        (gradient,) = torch.autograd.grad(result.pow(3).sum(), a, create_graph=True)
        second.append(torch.autograd.grad(gradient.sum(), a)[0])
    torch.testing.assert_close(second[0], second[1], rtol=1e-3, atol=1e-1)


def test_graphs_replay_products_with_packed_operands() -> None:
    """Which scheme multiplies is decided anew each time."""
    a, b = (torch.randn(500, 500, device="cuda") for _ in range(2))
    packed = tilesmith.pack(b)
    tilesmith.warmup([(a, packed)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tilesmith.matmul(a, packed)
    for name in ("normal", "graded slices of K", "infinities and NaNs", "uniform"):
        a.copy_(operands(name, 500, 500, 500, "cuda")[0])
        graph.replay()
        assert_same(result, tilesmith.matmul(a, packed))


def test_autocast_and_other_types_use_the_tensor() -> None:
    a, b = torch.randn(128, 256, device="cuda"), torch.randn(256, 64, device="cuda")
    packed = tilesmith.pack(b)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = tilesmith.matmul(a, packed)
        assert_same(result, tilesmith.matmul(a, b))
    assert result.dtype == torch.bfloat16
    half = tilesmith.pack(b.bfloat16())
    assert half.nbytes == 0
    assert_same(tilesmith.matmul(a.bfloat16(), half), tilesmith.matmul(a.bfloat16(), b.bfloat16()))
