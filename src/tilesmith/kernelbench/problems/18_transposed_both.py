"""A product of which both operands are stored transposed."""

import torch
from torch import nn

M, K, N = 2048, 8192, 4096


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return torch.matmul(A.T, B.T)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(K, M), torch.rand(N, K)]


def get_init_inputs() -> list[object]:
    return []
