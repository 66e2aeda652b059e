"""What `tilesmith.linear` computes, by torch's functions and by itself."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

import tilesmith

Added = Tensor | None

ACTIVATED: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda sums: sums,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda sums: functional.gelu(sums, approximate="tanh"),
    "silu": functional.silu,
}


def by_torch(
    x: Tensor, weight: Tensor, bias: Added = None, residual: Added = None, *, activation: str | None = None
) -> Tensor:
    result = ACTIVATED[activation](functional.linear(x, weight, bias))
    return result if residual is None else result + residual


def ours(
    x: Tensor, weight: Tensor, bias: Added = None, residual: Added = None, *, activation: str | None = None
) -> Tensor:
    """The same by `tilesmith.linear`."""
    return tilesmith.linear(x, weight, bias, activation=activation, residual=residual)
