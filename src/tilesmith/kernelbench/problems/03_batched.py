"""A batch of independent products."""

import torch
from torch import nn

BATCH, M, K, N = 128, 512, 1024, 2048


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return torch.bmm(A, B)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(BATCH, M, K), torch.rand(BATCH, K, N)]


def get_init_inputs() -> list[object]:
    return []
