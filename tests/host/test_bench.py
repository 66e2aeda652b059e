"""The instruments: suites, errors and the model of the kernels' arithmetic."""

import math
from fractions import Fraction

import pytest
import torch

from tilesmith.bench import suites, textbook
from tilesmith.bench.errors import error


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
    result = textbook.product(a, b)
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
    assert textbook.product(a, b).item() == 1 + 2.0**-23


def test_nan_and_infinity_pass_through_the_textbook_chain() -> None:
    a = torch.tensor([[math.inf, 1.0], [math.nan, 1.0], [3e38, 3e38]])
    result = textbook.product(a, torch.ones(2, 1))
    assert result[0].item() == math.inf and math.isnan(result[1].item()) and result[2].item() == math.inf


def test_errors_are_relative_to_the_sizes_of_the_operands() -> None:
    a, b = torch.tensor([[2.0, -2.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    result = torch.tensor([[4.0 + 0.8, 0.0]])  # off by 0.8, where |A| |B| is 8
    found = error(result, a, b)
    assert found.comp == pytest.approx(0.1) and found.norm == pytest.approx(0.2)


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
