"""A matrix times a number that is an argument of forward."""

import torch
from torch import nn

M, N = 65536, 16384


class Model(nn.Module):
    def forward(self, A: torch.Tensor, s: float) -> torch.Tensor:  # noqa: N803
        return A * s


def get_inputs() -> list[torch.Tensor | float]:
    return [torch.rand(M, N), 3.14]


def get_init_inputs() -> list[object]:
    return []
