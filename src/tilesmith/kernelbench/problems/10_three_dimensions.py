"""A three-dimensional tensor times a matrix, along the last dimension."""

import torch
from torch import nn

BATCH, M, K, N = 16, 1024, 2048, 768


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return torch.matmul(A, B)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(BATCH, M, K), torch.rand(K, N)]


def get_init_inputs() -> list[object]:
    return []
