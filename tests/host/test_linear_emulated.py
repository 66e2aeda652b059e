"""What follows a product, in the kernels themselves: by the emulator, against float64."""

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from launched import constants_of
from torch import Tensor
from torchs_linear import Added, by_torch

import tilesmith
from tilesmith import emulator
from tilesmith.core.device import named
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.planner import choose

pytestmark = pytest.mark.usefixtures("emulator_cache")

Shape = tuple[int, ...]

# The types, each on a GPU that has kernels of their own for them, and elsewhere.
TYPES = [(torch.float32, "h200"), (torch.float16, "h200"), (torch.bfloat16, "h200"), (torch.float64, "t4")]
ELSEWHERE = [(torch.float32, "t4"), (torch.float16, "a100"), (torch.bfloat16, "t4"), (torch.float64, "h200")]

STEEPEST = 1.13  # an activation's slope, at most
ROUGHNESS = 1e-4  # of an activation in 16 bits, where it is near zero

each_activation = pytest.mark.parametrize("activation", [None, *ACTIVATIONS], ids=str)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(x: Tensor, weight: Tensor, bias: Added, residual: Added, activation: str | None) -> Tensor:
    wide = (None if added is None else added.double() for added in (bias, residual))
    return by_torch(x.double(), weight.double(), *wide, activation=activation)


def check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> None:
    result = tilesmith.linear(x, weight, bias, activation=activation, residual=residual, out_dtype=out_dtype)
    assert result.dtype == (out_dtype or x.dtype)
    judge(result, x, weight, bias, residual, activation)


def judge(result: Tensor, x: Tensor, weight: Tensor, bias: Added, residual: Added, activation: str | None) -> None:
    """A sum in float32, or float64 for it, and one rounding to the type of the result: not one for each step. But
    before an activation in 16 bits, sums may wait rounded, and its function may be off by some of the last bit."""
    expected = exact(x, weight, bias, residual, activation)
    assert result.shape == expected.shape
    size = x.double().abs() @ weight.double().abs().T
    for added in (bias, residual):
        size = size if added is None else size + added.double().abs()
    sum_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    of_sum = (8 + x.shape[-1] ** 0.5) * torch.finfo(sum_dtype).eps * size
    rounding = torch.finfo(result.dtype).eps / 2
    allowed = rounding * expected.abs() + of_sum
    if activation is not None and result.dtype.itemsize == 2:
        sums, activated = (exact(x, weight, bias, None, each).abs() for each in (None, activation))
        allowed += rounding * (STEEPEST * sums + 0.25 * activated) + ROUGHNESS
    assert ((result.double() - expected).abs() <= allowed).all()


PARTS = [(None, True, False), (None, False, True), *((activation, True, True) for activation in ACTIVATIONS)]


@pytest.mark.parametrize(
    ("activation", "has_bias", "has_residual", "dtype", "gpu"),
    [
        (*parts, dtype, gpu)
        for (which, parts), (dtype, gpu) in itertools.product(enumerate(PARTS), TYPES)
        if parts[0] == "gelu" or dtype != (torch.float16, torch.bfloat16)[which % 2]  # whose kernels are alike
    ],
    ids=str,
)
def test_every_part_is_right(
    activation: str | None, has_bias: bool, has_residual: bool, dtype: torch.dtype, gpu: str
) -> None:
    x, weight = normal(19, 40, dtype=dtype), normal(26, 40, dtype=dtype, seed=1)
    bias = normal(26, dtype=dtype, seed=2) if has_bias else None
    residual = normal(19, 26, dtype=dtype, seed=3) if has_residual else None
    for each in (gpu, *(other for own, other in ELSEWHERE if own == dtype and activation == "gelu")):
        with tilesmith.emulate(each):
            check(x, weight, bias, residual, activation=activation)


@pytest.mark.parametrize(("dtype", "gpu"), [*TYPES, (torch.float32, "t4")], ids=str)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 70, 33), (40, 70, 1), (70, 33, 130), (5, 2048, 24)],
)
def test_sizes(rows: int, depth: int, columns: int, dtype: torch.dtype, gpu: str) -> None:
    """From a vector to more than a tile, with few columns, and with a long sum."""
    x, weight, bias, residual = (
        normal(*shape, dtype=dtype) for shape in ((rows, depth), (columns, depth), (columns,), (rows, columns))
    )
    with tilesmith.emulate(gpu):
        check(x, weight, bias, residual, activation="silu")


@pytest.mark.parametrize(("dtype", "gpu"), TYPES, ids=str)
def test_residuals_of_any_shape_and_strides(dtype: torch.dtype, gpu: str) -> None:
    x, weight, bias = normal(4, 9, 40, dtype=dtype), normal(26, 40, dtype=dtype), normal(26, dtype=dtype)
    shapes: list[Shape] = [(4, 9, 26), (9, 26), (26,), (1,), (4, 1, 26), (4, 9, 1), ()]
    residuals = [normal(*shape, dtype=dtype) for shape in shapes]
    residuals += [normal(4, 26, 9, dtype=dtype).mT, normal(4, 9, 52, dtype=dtype)[..., 1::2]]
    with tilesmith.emulate(gpu):
        for residual in residuals:
            check(x, weight, bias, residual, activation="relu")
        check(x[0, 0], weight, bias, residuals[2], activation="relu")


@pytest.mark.parametrize("gpu", ["h200", "t4"])
def test_x_and_weight_of_any_strides(gpu: str) -> None:
    for x, weight in itertools.product(
        (normal(19, 40, dtype=torch.float32), normal(40, 19, dtype=torch.float32).T),
        (normal(26, 40, dtype=torch.float32), normal(40, 26, dtype=torch.float32).T),
    ):
        with tilesmith.emulate(gpu):
            check(x, weight, normal(52, dtype=torch.float32)[::2], normal(19, 26, dtype=torch.float32))


@pytest.mark.parametrize("gpu", ["h200", "t4"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_result_takes_a_wider_residual(dtype: torch.dtype, gpu: str) -> None:
    x, weight, bias = normal(19, 40, dtype=dtype), normal(26, 40, dtype=dtype), normal(26, dtype=dtype)
    with tilesmith.emulate(gpu):
        residual = normal(19, 26, dtype=torch.float32)
        check(x, weight, bias, residual, activation="gelu", out_dtype=torch.float32)


@pytest.mark.parametrize("gpu", ["h200", "t4"])
def test_no_features_leave_the_bias_and_no_rows_leave_nothing(gpu: str) -> None:
    with tilesmith.emulate(gpu):
        check(torch.ones(3, 0), torch.ones(2, 0), torch.tensor([1.0, -2.0]), torch.ones(3, 2), activation="relu")
        check(torch.ones(0, 4), torch.ones(2, 4), torch.ones(2), torch.ones(0, 2), activation="relu")


@each_activation
def test_infinities_and_nans_are_torchs(activation: str | None) -> None:
    x = torch.tensor([[float("inf"), 1.0], [-float("inf"), 1.0], [float("nan"), 1.0], [1e30, 1.0], [-1e30, 1.0]])
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5, -0.5])
    expected = exact(x, weight, bias, None, activation).float()
    for gpu in ("h200", "t4"):
        with tilesmith.emulate(gpu):
            result = tilesmith.linear(x, weight, bias, activation=activation)
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_are_products_too(activation: str | None) -> None:
    gradients = []
    for emulated in (True, False):
        leaves = [normal(*s, dtype=torch.float32).requires_grad_() for s in ((19, 40), (26, 40), (26,), (19, 26))]
        x, weight, bias, residual = leaves
        with tilesmith.emulate("h200") if emulated else nullcontext():
            result = tilesmith.linear(x, weight, bias, activation=activation, residual=residual)
            result.square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("configuration", "rows", "columns"),
    [
        (hopper.Configuration(128, 64, cluster=2), 300, 264),  # boxes
        (hopper.Configuration(128, 64), 300, 263),  # lines from any element
        (hopper.Configuration(192, 176, cluster=2), 600, 264),  # three consumers, without a residual
        (hopper.Configuration(192, 176, cluster=2), 600, 263),
    ],
    ids=str,
)
def test_results_that_wait_for_the_next_tile(
    configuration: hopper.Configuration, rows: int, columns: int, seed: int | None
) -> None:
    """On a GPU of few SMs a block has several tiles: an activation then is computed while the next one is summed."""
    x, weight, bias, residual = (
        normal(*shape, dtype=torch.bfloat16) for shape in ((rows, 200), (columns, 200), (columns,), (rows, columns))
    )
    epilogue = Epilogue(bias, "gelu", residual if rows < 600 else None)
    problem = Problem.of(x, weight.T, epilogue=epilogue)
    plan = hopper.plan(problem, replace(named("h200"), sm_count=4), configuration)
    assert constants_of(plan.product.kernel, gemm.CommonConstants).store_waits
    result = emulator.run(plan, x, weight.T, epilogue=epilogue, seed=seed)
    judge(result, x, weight, bias, epilogue.residual, "gelu")


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("configuration", "rows", "columns", "at_once", "sms"),
    [
        (hopper.Configuration(128, 128, cluster=2), 300, 264, 8, 4),
        (hopper.Configuration(128, 128, cluster=2), 300, 264, 8, 132),
        (hopper.Configuration(128, 64), 300, 262, 1, 4),
        (hopper.Configuration(128, 64), 300, 262, 1, 132),
        (hopper.Configuration(128, 256), 70, 263, 1, 132),
        (hopper.Configuration(64, 96), 70, 96, 8, 4),
        (hopper.Configuration(64, 16), 100, 25, 1, 4),
        (hopper.Configuration(64, 8), 200, 8, 8, 132),
    ],
    ids=str,
)
def test_residuals_that_are_read_by_lines(
    configuration: hopper.Configuration, rows: int, columns: int, at_once: int, sms: int, seed: int | None
) -> None:
    """Without an activation, a residual of 16 bits goes through shared memory before the results do."""
    x, weight, residual = (
        normal(*shape, dtype=torch.bfloat16, seed=i)
        for i, shape in enumerate(((rows, 72), (columns, 72), (rows, columns)))
    )
    epilogue = Epilogue(residual=residual)
    plan = hopper.plan(Problem.of(x, weight.T, epilogue=epilogue), replace(named("h200"), sm_count=sms), configuration)
    assert constants_of(plan.product.kernel, gemm.CommonConstants).residual_vector == at_once
    judge(emulator.run(plan, x, weight.T, epilogue=epilogue, seed=seed), x, weight, None, residual, None)


def test_residuals_of_a_batch_with_factors_and_a_bias() -> None:
    a, b = normal(3, 70, 40, dtype=torch.float16), normal(3, 40, 72, dtype=torch.float16, seed=1)
    bias = normal(72, dtype=torch.float16, seed=2)
    whole = normal(3, 70, 74, dtype=torch.float16, seed=3)
    residuals = [
        (normal(3, 70, 72, dtype=torch.float16, seed=4), 8),
        (whole[..., 2:], 1),
        (whole[..., 1:73], 1),
        (whole[:1, :, :72].expand(3, 70, 72), 1),
        (whole[:, :1, :72].expand(3, 70, 72), 1),
        (normal(3, 72, 70, dtype=torch.float16, seed=5).mT, 0),  # by columns: another launch adds it
    ]
    for residual, at_once in residuals:
        epilogue = Epilogue(bias, None, residual, 0.5, 2.0)
        plan = hopper.plan(Problem.of(a, b, epilogue=epilogue), named("h200"), hopper.Configuration(64, 64))
        assert constants_of(plan.product.kernel, gemm.CommonConstants).residual_vector == at_once
        result = emulator.run(plan, a, b, epilogue=epilogue)
        product = a.double() @ b.double()
        expected = 0.5 * product + bias.double() + 2.0 * residual.double()
        size = a.double().abs() @ b.double().abs() + bias.double().abs() + 2.0 * residual.double().abs()
        allowed = torch.finfo(torch.float16).eps / 2 * expected.abs() + 20 * torch.finfo(torch.float32).eps * size
        assert ((result.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("swap_ab", [False, True])
def test_what_follows_a_product_that_splits_a_on_the_way(swap_ab: bool) -> None:
    """Its sums are stored as they are, and the launch that would add parts of K does the rest."""
    shapes = ((70, 328), (40, 328), (40,), (70, 40))
    x, weight, bias, residual = (normal(*shape, dtype=torch.float32, seed=i) for i, shape in enumerate(shapes))
    epilogue = Epilogue(bias, "gelu", residual)
    configuration = hopper.Configuration(64, 64, swap_ab=swap_ab, rs=True)
    plan = hopper.plan(Problem.of(x, weight.T, accuracy="fp32", epilogue=epilogue), named("h200"), configuration)
    assert plan.launches[-1].kernel.entry == "split_k_reduce"
    judge(emulator.run(plan, x, weight.T, epilogue=epilogue), x, weight, bias, residual, "gelu")


def test_a_layer_of_few_rows_reads_its_weight_once() -> None:
    """Its bias does not keep the weight from being split on the way, which takes half of the time."""
    x, weight, bias = (torch.empty(shape, device="meta") for shape in ((128, 32768), (32768, 32768), (32768,)))
    plain, layer = (
        choose(Problem.of(x, weight.T, accuracy="fp32", epilogue=epilogue), named("h200"))
        for epilogue in (None, Epilogue(bias, "relu"))
    )
    assert plain.name == layer.name == "hopper 128x128 cluster 2 swap_ab rs"
    assert plain.cycles < layer.cycles < 1.02 * plain.cycles
