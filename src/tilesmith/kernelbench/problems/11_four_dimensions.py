"""A four-dimensional tensor times a matrix, spelled as an einsum."""

import torch
from torch import nn

BATCH, HEIGHT, WIDTH, K, N = 8, 256, 512, 256, 768


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return torch.einsum("bijl,lk->bijk", A, B)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(BATCH, HEIGHT, WIDTH, K), torch.rand(K, N)]


def get_init_inputs() -> list[object]:
    return []
