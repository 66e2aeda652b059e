"""A tall and narrow matrix times a short and wide one."""

import torch
from torch import nn

M, K, N = 32768, 32, 32768


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return torch.matmul(A, B)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(M, K), torch.rand(K, N)]


def get_init_inputs() -> list[object]:
    return []
