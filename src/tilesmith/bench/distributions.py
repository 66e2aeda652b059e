"""Operands on which the promise of `accuracy="fp32"` is tested: ordinary ones, and all kinds that make it hard."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Maker = Callable[[int, int, int, torch.Generator], tuple[Tensor, Tensor]]


def operands(name: str, m: int, k: int, n: int, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
    """A (M x K) and B (K x N) of the distribution `name`, one of DISTRIBUTIONS."""
    generator = torch.Generator(device)
    generator.manual_seed(seed)
    return DISTRIBUTIONS[name](m, k, n, generator)


def _normal(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=g, device=g.device)


def _uniform(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.rand(rows, columns, generator=g, device=g.device)


def _both(make: Callable[[int, int, torch.Generator], Tensor]) -> Maker:
    return lambda m, k, n, g: (make(m, k, g), make(k, n, g))


def _times(a_exponent: int, b_exponent: int) -> Maker:
    """Normal values, times powers of two."""
    return lambda m, k, n, g: (_normal(m, k, g) * 2.0**a_exponent, _normal(k, n, g) * 2.0**b_exponent)


def _spread(exponents: int) -> Callable[[int, int, torch.Generator], Tensor]:
    return lambda rows, columns, g: (
        _normal(rows, columns, g) * torch.exp2((_uniform(rows, columns, g) * 2 - 1) * exponents)
    )


def _grades(count: int, exponents: int, g: torch.Generator) -> Tensor:
    """Powers of two from 2^-exponents to 2^exponents."""
    return torch.exp2(torch.linspace(-exponents, exponents, count, device=g.device).round())


def _graded_slices(m: int, k: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    grades = _grades(k, 20, g)
    return _normal(m, k, g) * grades, _normal(k, n, g) / grades[:, None]


def _cancelling(m: int, k: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The second half of each sum takes most of the first away."""
    half = k // 2
    a, b = _normal(m, k, g), _normal(k, n, g)
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half] * (1 + 2.0**-10 * _uniform(half, n, g))
    return a, b


def _outliers(m: int, k: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A few columns of A are a hundred times as large, as in the activations of language models."""
    a = _normal(m, k, g)
    a[:, :: max(k // 3, 1)] *= 100
    return a, _normal(k, n, g)


def _overflowing(m: int, k: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some columns of the product are finite, and others are not, by far."""
    exponents = torch.where(torch.arange(n, device=g.device) % 3 == 0, 60.0, 2.0)
    return _uniform(m, k, g) * 2.0**100 + 2.0**99, (_uniform(k, n, g) + 0.5) * torch.exp2(exponents)


def _special(m: int, k: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    a, b = _normal(m, k, g), _normal(k, n, g)
    a[_uniform(m, k, g) < 0.5 / k] = float("inf")
    b[_uniform(k, n, g) < 0.5 / k] = float("-inf")
    a[0, 0] = float("nan")
    b[:, n // 2] = 0.0  # where it meets an infinity, there is a NaN
    return a, b


DISTRIBUTIONS: Final[dict[str, Maker]] = {
    "uniform": _both(_uniform),
    "normal": _both(_normal),
    "lognormal": _both(lambda rows, columns, g: torch.exp(3 * _normal(rows, columns, g))),
    "exponents within 20": _both(_spread(20)),
    "exponents within 60": _both(_spread(60)),
    "graded rows": lambda m, k, n, g: (_normal(m, k, g) * _grades(m, 40, g)[:, None], _normal(k, n, g)),
    "graded columns": lambda m, k, n, g: (_normal(m, k, g), _normal(k, n, g) * _grades(n, 40, g)),
    "graded slices of K": _graded_slices,
    "cancelling": _cancelling,
    "sparse": _both(lambda rows, columns, g: _normal(rows, columns, g) * (_uniform(rows, columns, g) < 0.1)),
    "rectified": lambda m, k, n, g: (_normal(m, k, g).relu(), _normal(k, n, g)),
    "outliers": _outliers,
    "subnormal": _times(-132, 20),
    "subnormal by huge": _times(-132, 110),
    "huge": _times(120, -100),
    "overflowing": _overflowing,
    "infinities and NaNs": _special,
}
