"""The products of a model that a written module has plans for."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernelbench.templates import template
from tilesmith.kernels import family_of
from tilesmith.planner import choose

Shape = tuple[int, ...]

# A plan has up to five kernels, and each that no other plan has takes nvcc a second or two when the module is built.
MAX_PLANS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpec:
    """A float32 product as the kernels of a module get it: two matrices, or batches of them, and what becomes of it.

    >>> spec = ProductSpec.linear(torch.empty(8, 3, 64), torch.empty(32, 64), has_bias=True, activation="gelu")
    >>> spec.a_shape, spec.b_shape, spec.b_strides
    ((24, 64), (64, 32), (1, 64))
    """

    a_shape: Shape
    a_strides: Shape
    b_shape: Shape
    b_strides: Shape
    has_bias: bool = False  # contiguous, along the columns
    activation: str | None = None  # one of core.epilogue.ACTIVATIONS
    skips_zeros: bool = False  # large parts of the operands may be zero, as in triangles

    @classmethod
    def of(
        cls, a: Tensor, b: Tensor, *, has_bias: bool = False, activation: str | None = None, skips_zeros: bool = False
    ) -> "ProductSpec":
        """The product of two operands of torch.matmul, as `_matmul` of a module passes it on."""
        a, b = a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(1) if b.dim() == 1 else b
        return cls(
            a_shape=tuple(a.shape),
            a_strides=a.stride(),
            b_shape=tuple(b.shape),
            b_strides=b.stride(),
            has_bias=has_bias,
            activation=activation,
            skips_zeros=skips_zeros,
        )

    @classmethod
    def linear(cls, x: Tensor, weight: Tensor, *, has_bias: bool, activation: str | None = None) -> "ProductSpec":
        """The product of `_linear` of a module, whose arguments are those of torch.nn.functional.linear."""
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        return cls.of(rows, weight.t(), has_bias=has_bias, activation=activation)

    @classmethod
    def einsum(cls, equation: str, a: Tensor, b: Tensor) -> "ProductSpec | None":
        """The product of `_einsum` of a module, as that function itself makes it; None if it leaves these to torch.

        >>> ProductSpec.einsum("bthd,bshd->bhts", torch.empty(2, 7, 4, 64), torch.empty(2, 9, 4, 64)).b_shape
        (2, 4, 64, 9)
        """
        found = []

        def multiply(x: Tensor, y: Tensor) -> Tensor:
            found.append(cls.of(x, y))
            return torch.matmul(x, y)

        names: dict[str, Any] = {"_torch": torch, "_matmul": multiply}
        exec(template("einsum.py.in"), names)
        names["_einsum"](equation, *(torch.empty_strided(x.shape, x.stride(), device="meta") for x in (a, b)))
        return next(iter(found), None)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ProductSpec":
        """The value of which `to_dict` made this."""
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    @property
    def out_shape(self) -> Shape:
        batch = torch.broadcast_shapes(self.a_shape[:-2], self.b_shape[:-2])
        return (*batch, self.a_shape[-2], self.b_shape[-1])

    @property
    def flops(self) -> int:
        return 2 * prod(self.out_shape) * self.a_shape[-1]

    def problem(self, accuracy: Accuracy) -> Problem:
        """The same as the planner takes it."""
        a = torch.empty_strided(self.a_shape, self.a_strides, device="meta")
        b = torch.empty_strided(self.b_shape, self.b_strides, device="meta")
        bias = torch.empty(self.b_shape[-1], device="meta") if self.has_bias else None
        epilogue = Epilogue(bias, self.activation)
        return Problem.of(a, b, accuracy=accuracy, skips_zeros=self.skips_zeros, epilogue=epilogue)


def plans_of(products: Iterable[ProductSpec], device: Device, accuracy: Accuracy) -> dict[ProductSpec, Plan]:
    """Plans for the costliest of these products, in that order; of those with an activation there is one without it as
    well, for calls that need gradients. Those that only the fallback can do have none: the kernels for any product do
    them."""
    plans: dict[ProductSpec, Plan] = {}
    with_plain = (x for spec in products for x in (spec, replace(spec, activation=None)))
    for spec in sorted(dict.fromkeys(with_plain), key=lambda spec: -spec.flops):
        if len(plans) == MAX_PLANS or spec.flops == 0:
            break
        plan = choose(spec.problem(accuracy), device)
        if not family_of(plan).is_fallback:
            plans[spec] = plan
    return plans
