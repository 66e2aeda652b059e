"""What is to be known of a model to write it down as operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilesmith.kernelbench.chain_spec import ChainSpec
from tilesmith.kernelbench.products import ProductSpec

_CALLS: Final = frozenset({"linear", "added", "einsum"})  # parts of a written module that multiply


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What is to be known of a model to write it with our products."""

    arguments: tuple[str, ...]  # of forward
    forward: tuple[str, ...]  # its statements
    products: tuple[ProductSpec, ...]
    chains: tuple[ChainSpec, ...]  # which forward calls by their numbers
    parts: tuple[str, ...]  # of a written module
    left: Mapping[str, int]  # operations that stay torch's, and how often they are called
    settings: tuple[str, ...]  # attributes that forward reads, by their paths
    digest: str  # of all others

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "arguments": self.arguments,
            "forward": self.forward,
            "products": [x.to_dict() for x in self.products],
            "chains": [x.to_dict() for x in self.chains],
            "parts": self.parts,
            "left": dict(self.left),
            "settings": self.settings,
            "digest": self.digest,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "WholeModel":
        """The value of which `to_dict` made this."""
        texts = {name: tuple(data[name]) for name in ("arguments", "forward", "parts", "settings")}
        products = tuple(ProductSpec.from_dict(x) for x in data["products"])
        chains = tuple(ChainSpec.from_dict(x) for x in data["chains"])
        return cls(**texts, products=products, chains=chains, left=data["left"], digest=data["digest"])

    @property
    def multiplies(self) -> bool:
        """Whether any product in it is ours."""
        return not _CALLS.isdisjoint(self.parts) or any("_matmul(" in line for line in self.forward)

    def describe(self) -> str:
        """What is computed, as a person writes it."""
        left = self.describe_left()
        return f"a model with {self.describe_products()}" + (f"; left to torch: {left}" if left else "")

    def describe_products(self) -> str:
        if not self.multiplies:
            return "no product"
        if not self.products:
            return "products without a plan"
        return "1 product" if len(self.products) == 1 else f"{len(self.products)} products of different sizes"

    def describe_left(self) -> str:
        """The operations that stay torch's, the most frequent first."""
        ordered = sorted(self.left.items(), key=lambda entry: (-entry[1], entry[0]))
        return ", ".join(name if times == 1 else f"{name} ({times} times)" for name, times in ordered)

    def describe_chains(self) -> list[str]:
        """The operations of each chain."""
        return list(dict.fromkeys(", then ".join(chain.does) for chain in self.chains))
