"""What `tilesmith.linear` computes, by torch's functions and by itself."""

import torch
from torch.nn import functional

import tilesmith


def activated(name: str | None, sums: torch.Tensor) -> torch.Tensor:
    match name:
        case None:
            return sums
        case "relu":
            return functional.relu(sums)
        case "gelu":
            return functional.gelu(sums)
        case "gelu_tanh":
            return functional.gelu(sums, approximate="tanh")
        case "silu":
            return functional.silu(sums)
    raise AssertionError(name)


def by_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    result = activated(activation, functional.linear(x, weight, bias))
    return result if residual is None else result + residual


def ours(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    """The same by `tilesmith.linear`."""
    return tilesmith.linear(x, weight, bias, activation=activation, residual=residual)
