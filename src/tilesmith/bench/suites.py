"""Products to measure and test, as data: `suites/*.toml`."""

import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import Final

import torch

_FOLDER: Final = resources.files("tilesmith.bench") / "suites"
NAMES: Final = tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if ".toml" in file.name))


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

    def operands(self, device: torch.device | str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh random operands: normal floats, or integers over their whole range."""
        generator = torch.Generator(device=device).manual_seed(seed) if str(device) != "meta" else None
        dtype: torch.dtype = getattr(torch, self.dtype)

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

    def __str__(self) -> str:
        transposed = [f"{x} transposed" for x in "ab" if getattr(self, f"{x}_layout") == "transposed"]
        sizes = f"{self.m}x{self.k}x{self.n}"
        return " ".join([f"{self.batch}x({sizes})" if self.batch else sizes, *transposed])


def load(name: str) -> tuple[Product, ...]:
    """The products of a suite.

    >>> [str(product) for product in load("seeds")][2]
    '2048x8192x4096 a transposed'
    """
    text = (_FOLDER / f"{name}.toml").read_text()
    return tuple(Product(**entry) for entry in tomllib.loads(text)["product"])


def random_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Normal floats, or integers over the type's whole range."""
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, device=device, generator=generator)
