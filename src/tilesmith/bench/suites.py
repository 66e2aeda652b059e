"""Products to measure and test, as data: `suites/*.toml`.

A suite has any of these parts, and what they name is measured in this order:

    include = ["aligned"]     the products of other suites
    [[product]]               products by their sizes; every key is a field of `Product`
    [sweep] or [random]       products drawn at random: see sweep.py

A table `[each]` has fields that hold for all of them: for an included product instead of its own, for a product of the
suite unless it says otherwise. A field that is a list stands for one product with each of its values.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as combinations
from typing import Any, Final, Literal

import torch

from tilesmith.bench.distributions import operands as drawn
from tilesmith.bench.sweep import AnyShapes, Sweep
from tilesmith.bench.vocabulary import SUITES_FOLDER
from tilesmith.core.accuracy import Accuracy

Clock = Literal["gpu", "wall"]  # between two events on the stream; by the host's clock, in a loop of calls
Operator = Literal["matmul", "dispatched", "linear", "mm", "addmm", "bmm", "baddbmm"]
Packed = Literal["none", "b", "both"]

OVERRIDDEN: Final = ("mm", "addmm", "bmm", "baddbmm")  # operators of torch's: ours are the same calls under an override


@dataclass(frozen=True, slots=True)
class Product:
    """One entry of a suite."""

    name: str
    m: int
    k: int
    n: int
    why: str
    a_layout: str = "rows"  # or "transposed": stored as (K, M)
    b_layout: str = "rows"  # or "transposed": stored as (N, K)
    batch: int = 0  # matrices on either side; 0 for plain ones
    dtype: str = "float32"
    accuracy: Accuracy | None = None  # of float32; None follows torch's setting
    values: str = "normal"  # or another one of distributions.DISTRIBUTIONS, for float matrices
    packed: Packed = "none"  # operands that are packed before any time is taken
    operator: Operator = "matmul"
    bias: bool = False  # a row that is added
    activation: str = "none"
    residual: bool = False  # a matrix that is added last
    clock: Clock = "gpu"
    against: str = "torch"  # opponents, as the command line has them
    tries_all: bool = False  # where torch is faster, by all other plans, too
    origin: str = ""  # the suite that this one is included from

    def __post_init__(self) -> None:
        if self.operator in OVERRIDDEN and self.clock != "wall":
            raise ValueError(f"{self.name}: calls under an override are timed by the wall clock, not by {self.clock!r}")
        if self.batch and self.values != "normal":
            raise ValueError(f"{self.name}: a batch has normal values")

    def operands(self, device: torch.device | str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh random operands: floats of the distribution, or integers over their whole range."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.values != "normal" and str(device) != "meta":
            pair = drawn(self.values, self.m, self.k, self.n, str(device), seed)
            layouts = zip(pair, (self.a_layout, self.b_layout), strict=True)
            a, b = (x.to(dtype).T.contiguous().T if layout == "transposed" else x.to(dtype) for x, layout in layouts)
            return a, b
        generator = torch.Generator(device=device).manual_seed(seed) if str(device) != "meta" else None

        def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
            sizes = (columns, rows) if layout == "transposed" else (rows, columns)
            stored = random_tensor((self.batch, *sizes) if self.batch else sizes, dtype, device, generator)
            return stored.mT if layout == "transposed" else stored

        return matrix(self.m, self.k, self.a_layout), matrix(self.k, self.n, self.b_layout)

    def reduced(self, most: int) -> "Product":
        """A product of the same kind with no size above `most`: in proportion, but none below a quarter of
        that; odd sizes stay odd."""
        scale = min(1.0, most / max(self.m, self.k, self.n))

        def reduce(size: int) -> int:
            smaller = max(round(size * scale), min(size, most // 4))
            return smaller - (size - smaller) % 2

        return replace(self, m=reduce(self.m), k=reduce(self.k), n=reduce(self.n))

    @property
    def variant(self) -> str:
        """What there is besides a product of two tensors with normal values, as a person reads it.

        >>> Product("x", 2, 3, 4, "", operator="linear", bias=True).variant
        'linear, bias'
        """
        parts = {
            self.operator: self.operator != "matmul",
            "bias": self.bias,
            self.activation: self.activation != "none",
            "residual": self.residual,
            f"{self.packed} packed": self.packed != "none",
            self.values: self.values != "normal",
        }
        return ", ".join(part for part, holds in parts.items() if holds)

    def __str__(self) -> str:
        transposed = [f"{x} transposed" for x in "ab" if getattr(self, f"{x}_layout") == "transposed"]
        sizes = f"{self.m}x{self.k}x{self.n}"
        return " ".join([f"{self.batch}x({sizes})" if self.batch else sizes, *transposed])


@cache
def load(name: str, seed: int | None = None, count: int | None = None) -> tuple[Product, ...]:
    """The products of a suite. `seed` and `count`: others than those of its table `[random]`, if it has one.

    >>> [str(product) for product in load("seeds")][2]
    '2048x8192x4096 a transposed'
    """
    suite = _suite(name)
    each: dict[str, Any] = suite.get("each", {})
    found: list[Product] = []
    for other in suite.get("include", ()):
        found += (replace(product, **chosen, origin=other) for product in load(other) for chosen in _combinations(each))
    own = [*suite.get("product", ()), *(Sweep(**suite["sweep"]).entries() if "sweep" in suite else ())]
    if "random" in suite:
        asked = {key: value for key, value in (("seed", seed), ("count", count)) if value is not None}
        own += AnyShapes(**suite["random"] | asked).entries()
    return tuple(found + [Product(**chosen) for entry in own for chosen in _combinations(each | entry)])


def is_drawn(name: str) -> bool:
    """Whether the products of a suite are those of a seed.

    >>> from tilesmith.bench.vocabulary import SUITES
    >>> [name for name in SUITES if is_drawn(name)]
    ['random']
    """
    return "random" in _suite(name)


def _suite(name: str) -> dict[str, Any]:
    return tomllib.loads((SUITES_FOLDER / f"{name}.toml").read_text())


def _combinations(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """
    >>> list(_combinations({"m": 2, "dtype": ["int8", "int16"]}))
    [{'m': 2, 'dtype': 'int8'}, {'m': 2, 'dtype': 'int16'}]
    """
    values = (value if isinstance(value, list) else [value] for value in fields.values())
    return (dict(zip(fields, chosen, strict=True)) for chosen in combinations(*values))


def random_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Normal floats, or integers over the type's whole range. On the meta device there are no values to draw."""
    if str(device) == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, device=device, generator=generator)
