"""A diagonal matrix, given as a vector, times a matrix."""

import torch
from torch import nn

N = 4096


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return A.unsqueeze(1) * B


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(N), torch.rand(N, N)]


def get_init_inputs() -> list[object]:
    return []
