"""The instruments: suites, errors and the model of the kernels' arithmetic."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from importlib import resources

import fma_chain
import pytest
import torch

from tilesmith.bench import shapes, suites
from tilesmith.bench.errors import error
from tilesmith.kernelbench.problem_file import ProblemFile, shipped
from tilesmith.kernelbench.recognize import Recognized, recognize_here
from tilesmith.kernelbench.show import show


def round_to_float32(exact: Fraction) -> float:
    """The nearest float32, ties to even, by exact arithmetic."""
    near = torch.tensor(float(exact), dtype=torch.float32)
    below = torch.nextafter(near, torch.tensor(-math.inf))
    above = torch.nextafter(near, torch.tensor(math.inf))
    choices = [below.item(), near.item(), above.item()]

    def badness(x: float) -> tuple[Fraction, int]:
        last_bit = int(torch.tensor(x, dtype=torch.float32).view(torch.int32).item()) & 1
        return abs(Fraction(x) - exact), last_bit

    return min(choices, key=badness)


@pytest.mark.parametrize("spread", [0.0, 4.0, 12.0])
def test_the_textbook_chain_rounds_every_multiply_add_once(spread: float) -> None:
    generator = torch.Generator().manual_seed(int(spread))
    a, b = (
        torch.randn(shape, generator=generator) * torch.exp2((spread * torch.randn(shape, generator=generator)).round())
        for shape in ((6, 40), (40, 5))
    )
    result = fma_chain.product(a, b)
    for i in range(6):
        for j in range(5):
            total = 0.0
            for k in range(40):
                total = round_to_float32(Fraction(a[i, k].item()) * Fraction(b[k, j].item()) + Fraction(total))
            assert result[i, j].item() == total


def test_the_textbook_chain_rounds_once_where_two_roundings_would_differ() -> None:
    # Just below the tie between 1 + 2^-23 and 1 + 2^-22, by less than float64 keeps: there the tie goes up, to even.
    a, b = torch.tensor([[1 + 2.0**-23, 2.0**-24 * (1 + 2.0**-20)]]), torch.tensor([[1.0], [1 - 2.0**-20]])
    assert (a.double() @ b.double()).float().item() == 1 + 2.0**-22
    assert fma_chain.product(a, b).item() == 1 + 2.0**-23


def test_nan_and_infinity_pass_through_the_textbook_chain() -> None:
    a = torch.tensor([[math.inf, 1.0], [math.nan, 1.0], [3e38, 3e38]])
    result = fma_chain.product(a, torch.ones(2, 1))
    assert result[0].item() == math.inf and math.isnan(result[1].item()) and result[2].item() == math.inf


def test_errors_are_relative_to_the_sizes_of_the_operands() -> None:
    a, b = torch.tensor([[2.0, -2.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    result = torch.tensor([[4.0 + 0.8, 0.0]])  # off by 0.8, where |A| |B| is 8
    found = error(result, a, b)
    assert found.comp == pytest.approx(0.1) and found.norm == pytest.approx(0.2)


def test_what_rounds_to_zero_because_float16_has_no_smaller_number_is_no_error() -> None:
    a, b = (torch.tensor([[x]], dtype=torch.float16) for x in (1e-4, 2e-4))
    assert a @ b == 0
    assert error(a @ b, a, b).comp == 0
    assert error(a @ b + 2**-24, a, b).comp == pytest.approx(0.5, abs=0.02)  # the other neighbour


def test_a_nan_makes_both_errors_nan() -> None:
    found = error(torch.tensor([[1.0, math.nan]]), torch.ones(1, 1), torch.ones(1, 2))
    assert math.isnan(found.comp) and math.isnan(found.norm)


def test_the_seeds_are_the_five_products() -> None:
    assert [str(p) for p in suites.load("seeds")] == [
        "4096x4096x4096",
        "2048x8192x4096",
        "2048x8192x4096 a transposed",
        "32768x64x32768",
        "8205x2949x5921",
    ]


# A product of a problem file -> how A and B are stored there.
LAYOUTS = {
    "A @ B": ("rows", "rows"),
    "A.T @ B": ("transposed", "rows"),
    "A @ B.T": ("rows", "transposed"),
    "A.T @ B.T": ("transposed", "transposed"),
}


def as_product(file: ProblemFile) -> suites.Product | None:
    """What a problem multiplies, if a product is all that it does. A batch that shares B is more rows of A."""
    found = recognize_here(file)
    assert isinstance(found, Recognized)
    expression = show(found.expression)
    if expression not in LAYOUTS:
        return None
    a_layout, b_layout = LAYOUTS[expression]
    a, b = (x.shape for x in found.inputs)
    m, k = a[-2:] if a_layout == "rows" else a[:-3:-1]
    batch, n = a[:-2], b[-1 if b_layout == "rows" else -2]
    if len(b) == 2:
        m, batch = math.prod(batch) * m, ()
    name = file.name.removesuffix(".py")
    return suites.Product(name, m, k, n, "", a_layout, b_layout, math.prod(batch) if batch else 0)


def test_the_kernelbench_suite_has_the_products_among_the_problems() -> None:
    products = [product for file in shipped() if (product := as_product(file))]
    assert [replace(product, why="") for product in suites.load("kernelbench")] == products
    assert len(products) == 14


def test_every_entry_of_a_suite_says_why_and_has_a_name_of_its_own() -> None:
    folder = resources.files("tilesmith.bench") / "suites"
    for name in (path.name.removesuffix(".toml") for path in folder.iterdir()):
        products = suites.load(name)
        keys = {(each.name, each.dtype, each.variant, str(each), each.origin) for each in products}
        assert len(keys) == len(products)
        assert all(product.why for product in products)


def test_the_llm_suite_stores_weights_as_linear_layers_do() -> None:
    products = suites.load("llm")
    assert {product.n for product in products if "vocabulary" in product.name} == {50257, 30522, 128256}
    transposed = [product for product in products if product.b_layout == "transposed"]
    others = {product.name for product in products} - {product.name for product in transposed}
    assert all(name.startswith("GPT-2") or "gradient" in name for name in others)
    assert {product.m for product in transposed} == {1, 16, 64, 4096, 8192}


def test_a_shape_says_what_is_multiplied() -> None:
    product = shapes.parse(" 5X6x7:TN:3 ", "int8")
    assert (product.m, product.k, product.n, product.batch, product.dtype) == (5, 6, 7, 3, "int8")
    assert (product.a_layout, product.b_layout) == ("transposed", "rows")
    a, b = product.operands("meta")
    assert (a.shape, a.stride(), b.shape) == ((3, 5, 6), (30, 1, 5), (3, 6, 7))
    assert shapes.parse("5x6x7:") == replace(shapes.parse("5x6x7"), name="5x6x7:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a product: write MxKxN"),
        ("5x6", "'5x6' is not a product"),
        ("5x6x7x8", "is not a product"),
        ("5x6x7:nn:2:3", "is not a product"),
        ("5x0x7", "has a size of 0"),
        ("5x6x7:n", "has the layout 'n'; it is one of nn, nt, tn and tt"),
        ("5x6x7:4", "has the layout '4'"),
        ("5x6x7:nt:many", "has a batch of 'many'; it is a number, of 1 at least"),
        ("5x6x7::0", "has a batch of '0'"),
    ],
)
def test_a_shape_that_is_none_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        shapes.parse(text)


def test_reduced_products_keep_their_kind() -> None:
    reduced = {p.name: p.reduced(96) for p in suites.load("seeds")}
    assert str(reduced["square"]) == "96x96x96"
    assert str(reduced["large K"]) == "24x96x48"
    assert str(reduced["transposed A"]) == "24x96x48 a transposed"
    assert str(reduced["tiny K"]) == "96x24x96"
    for size in (reduced["irregular"].m, reduced["irregular"].k, reduced["irregular"].n):
        assert size % 2 == 1 and 20 < size < 96


def test_operands_have_their_layout_and_are_drawn_by_the_seed() -> None:
    product = suites.Product("x", 5, 7, 3, "", a_layout="transposed", b_layout="transposed")
    a, b = product.operands("cpu", seed=1)
    assert (a.shape, a.stride(), b.shape, b.stride()) == ((5, 7), (1, 5), (7, 3), (1, 7))
    again, other = product.operands("cpu", seed=1)[0], product.operands("cpu", seed=2)[0]
    assert torch.equal(a, again) and not torch.equal(a, other)


def test_random_integers_cover_their_type() -> None:
    drawn = suites.random_tensor((10_000,), torch.int8, "cpu")
    assert drawn.min() == -128 and drawn.max() == 126  # randint leaves out its upper end
