"""The suites of `tilesmith bench` that have more than products: what they plan, call and compare, without a GPU."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import tilesmith
from tilesmith.bench import runner, suites, timing, vocabulary
from tilesmith.bench.contenders import Contender, Operands, WrongResultError, checked, contenders, ours, torchs
from tilesmith.bench.results import AGAIN, OURS, TORCH
from tilesmith.bench.suites import Product
from tilesmith.core.accuracy import resolve
from tilesmith.core.device import named
from tilesmith.planner import choose

MORE_THAN_PRODUCTS = ("half", "fp32", "tf32", "ieee", "pack", "epilogue", "host", "override", "random")


@pytest.mark.parametrize("suite", MORE_THAN_PRODUCTS)
def test_every_product_is_planned(suite: str) -> None:
    for product in suites.load(suite):
        operands = Operands.of(product, "meta")
        problem = operands.problem(product, resolve(product.accuracy))
        plan = choose(problem, named("h200"))
        assert (plan.problem.m * plan.problem.n * plan.problem.k * plan.problem.batches) == (
            product.m * product.n * product.k * max(product.batch, 1)
        )
        assert vocabulary.opponents(product.against)


def test_a_suite_is_its_products_with_each_of_the_values_of_a_list() -> None:
    half = suites.load("half")
    assert Counter(product.dtype for product in half) == {"bfloat16": 31, "float16": 31}
    assert list(dict.fromkeys(product.origin for product in half)) == ["aligned", "odd", "skinny", "batched", "small"]
    assert Counter(product.packed for product in suites.load("pack")) == {"none": 2, "b": 2, "both": 2}
    graded = [product for product in suites.load("fp32") if product.values != "normal"]
    assert len(graded) == 19  # all but the batch
    activations = {product.activation for product in suites.load("epilogue")}
    assert activations == {"none", "relu", "gelu", "gelu_tanh", "silu"}


def test_the_sweep_has_many_products_and_the_same_each_time() -> None:
    products = suites.load("override")
    suites.load.cache_clear()
    assert products == suites.load("override")
    assert len(set(products)) == 200
    kinds = Counter((x.operator, x.bias, x.residual, x.dtype, x.a_layout, x.b_layout) for x in products)
    assert len(kinds) == 5 * 3 * 3
    assert min(kinds.values()) >= 4
    sizes = [size for product in products for size in (product.m, product.k, product.n)]
    assert min(sizes) == 1
    assert max(sizes) > 4096
    assert 0.2 < sum(size % 2 for size in sizes) / len(sizes) < 0.4
    flops = [2 * max(x.batch, 1) * x.m * x.k * x.n for x in products]
    assert max(flops) <= 2**38
    assert 20 < sum(x < 2**20 for x in flops) < 100
    assert {x.batch > 0 for x in products if "bmm" in x.operator} == {True}


def test_random_products_are_of_any_shape_and_the_same_for_a_seed() -> None:
    products = suites.load("random", seed=3, count=400)
    suites.load.cache_clear()
    assert products == suites.load("random", seed=3, count=400)
    assert products[:100] == suites.load("random", seed=3)  # those of fewer are the first of them
    assert not set(map(str, products)) & set(map(str, suites.load("random", seed=4)))
    assert 0.15 < sum(x.batch > 0 for x in products) / len(products) < 0.3
    assert len({(x.a_layout, x.b_layout) for x in products}) == 4
    sizes = [size for x in products for size in (x.m, x.k, x.n)]
    assert min(sizes) < 8 and max(sizes) > 10_000
    assert 0.3 < sum(size % 64 == 0 for size in sizes) / len(sizes) < 0.45
    assert 0.3 < sum(size % 8 != 0 for size in sizes) / len(sizes) < 0.45
    flops = [2 * max(x.batch, 1) * x.m * x.k * x.n for x in products]
    assert min(flops) > 2e6 and max(flops) < 8e11


def test_the_operands_of_the_sweep_have_the_layouts_of_autograd() -> None:
    for product in suites.load("override")[:45]:
        a, b = product.operands("meta")
        assert a.shape[-2:] == (product.m, product.k) and b.shape[-2:] == (product.k, product.n)
        assert (a.mT if product.a_layout == "transposed" else a).is_contiguous()
        assert (b.mT if product.b_layout == "transposed" else b).is_contiguous()


def test_graded_values_lie_as_the_product_says() -> None:
    product = Product("x", 4, 64, 5, "", a_layout="transposed", values="graded slices of K")
    a, b = product.operands("cpu")
    assert (a.shape, a.stride(), b.shape, b.stride()) == ((4, 64), (1, 4), (64, 5), (5, 1))
    assert a[:, -1].abs().mean() > 1e6 * a[:, 0].abs().mean()


def test_what_cannot_be_measured_so_is_no_product() -> None:
    with pytest.raises(ValueError, match="by the wall clock, not by 'gpu'"):
        Product("x", 2, 3, 4, "", operator="mm")
    with pytest.raises(ValueError, match="a batch has normal values"):
        Product("x", 2, 3, 4, "", batch=2, values="uniform")


SMALL = [
    Product("plain", 5, 7, 6, ""),
    Product("packed", 5, 7, 6, "", packed="both", accuracy="fp32"),
    Product("half", 5, 7, 6, "", dtype="bfloat16", b_layout="transposed"),
    Product("operator", 5, 7, 6, "", operator="dispatched", clock="wall"),
    Product("bias", 5, 7, 6, "", operator="linear", b_layout="transposed", bias=True),
    Product(
        *("all", 5, 7, 6, ""), operator="linear", b_layout="transposed", bias=True, activation="silu", residual=True
    ),
    Product("residual", 5, 7, 6, "", operator="linear", b_layout="transposed", residual=True),
]


@pytest.mark.parametrize("product", SMALL, ids=lambda product: product.name)
def test_everyone_computes_the_same(product: Product) -> None:
    """CPU tensors go to torch, so that this is about the calls, not the kernels."""
    operands = Operands.of(product, "cpu", seed=1)
    found = contenders(product, operands, product.accuracy, ("torch", "torch-tf32"))
    assert list(found)[:2] == [OURS, TORCH]
    assert (AGAIN in found) == (product.clock == "gpu")
    assert ("torch-tf32" in found) == (product.dtype == "float32")
    for name, contender in found.items():
        error = checked(name, contender, product, operands)
        assert error is not None
        assert error.norm < (1e-6 if product.dtype == "float32" else 1e-2)


@pytest.mark.usefixtures("emulator_cache")
@pytest.mark.parametrize(
    "product",
    [
        Product("mm", 9, 8, 7, "", operator="mm", clock="wall"),
        Product("addmm", 9, 8, 7, "", operator="addmm", bias=True, clock="wall"),
        Product("baddbmm", 9, 8, 7, "", batch=3, operator="baddbmm", residual=True, clock="wall"),
    ],
    ids=lambda product: product.name,
)
def test_an_operator_of_torchs_is_ours_under_an_override(product: Product) -> None:
    operands = Operands.of(product, "cpu", seed=2)
    with tilesmith.emulate():
        found = contenders(product, operands, None, ("torch",))
        assert list(found) == [OURS, TORCH]
        for name, contender in found.items():
            assert checked(name, contender, product, operands) is not None
        assert runner.route(found[OURS]) == choose(operands.problem(product, "fp32"), named("h200")).name
        calls, around = ({name: getattr(x, part) for name, x in found.items()} for part in ("call", "around"))
        times = timing.by_wall_clock(calls, around, rounds=2)
    assert {name: len(each.samples) for name, each in times.items()} == {OURS: 2, TORCH: 2}
    assert all(sample > 0 for each in times.values() for sample in each.samples)


def test_a_wrong_result_is_found_with_and_without_an_epilogue() -> None:
    for product in (SMALL[0], SMALL[5]):
        operands = Operands.of(product, "cpu", seed=3)
        right = torchs(product, operands)
        wrong = Contender(lambda right=right: right() + 0.01, "fp32")  # type: ignore[misc]
        with pytest.raises(WrongResultError, match="the result of ours is wrong"):
            checked("ours", wrong, product, operands)
        unwritten = Contender(lambda right=right: right() * torch.nan, "fp32")  # type: ignore[misc]
        with pytest.raises(WrongResultError, match="is not finite"):
            checked("ours", unwritten, product, operands)


def test_torch_adds_a_residual_by_one_call() -> None:
    assert ours(SMALL[6], Operands.of(SMALL[6], "cpu"), None)().shape == (5, 6)
    assert getattr(torchs(SMALL[6], Operands.of(SMALL[6], "cpu")), "func", None) is torch.addmm


def test_torch_is_compiled_anew_for_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend="eager"))
    for activation in ("relu", "gelu", "silu"):
        product = replace(SMALL[5], activation=activation)
        operands = Operands.of(product, "cpu", seed=4)
        found = contenders(product, operands, None, ("torch-compile",))
        error = checked("torch-compile", found["torch-compile"], product, operands)
        assert error is not None and error.norm < 1e-6


def test_the_accuracy_of_the_command_line_replaces_that_of_a_suite() -> None:
    product = replace(suites.load("tf32")[0], m=5, k=7, n=6)
    found = contenders(product, Operands.of(product, "cpu"), "fp32", ("torch-tf32",))
    assert {name: each.precision for name, each in found.items()} == {OURS: "fp32", "torch-tf32": "tf32"}
