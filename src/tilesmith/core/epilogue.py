"""What is done to a product before it is stored."""

from typing import NamedTuple

import torch

from tilesmith.core.vocabulary import ACTIVATIONS as ACTIVATIONS


class Epilogue(NamedTuple):
    """`activation(scale * product + bias) + residual_scale * residual`, in one launch with the product."""

    bias: torch.Tensor | None = None  # of the columns
    activation: str | None = None
    residual: torch.Tensor | None = None  # it broadcasts to the result's shape
    scale: float = 1.0
    residual_scale: float = 1.0

    @property
    def is_scaled(self) -> bool:
        return self.scale != 1.0 or self.residual_scale != 1.0
