"""What kernels do to a product before they store it.

activation(scale * product + bias) + residual_scale * residual
"""

from typing import Final, NamedTuple

import torch

ACTIVATIONS: Final = ("relu", "gelu", "gelu_tanh", "silu")


class Epilogue(NamedTuple):
    bias: torch.Tensor | None = None  # one for each column
    activation: str | None = None
    residual: torch.Tensor | None = None  # of the result's type, and can be broadcast to its shape
    scale: float = 1.0
    residual_scale: float = 1.0
