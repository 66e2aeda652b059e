"""Operands without memory, for plans."""

from collections.abc import Sequence

import torch


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def laid_out(*shape: int, layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """By rows ("n") or by columns ("t")."""
    if len(shape) < 2 or layout == "n":
        return meta(*shape, dtype=dtype)
    return meta(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT


def strided(
    shape: Sequence[int], strides: Sequence[int], offset: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return meta(1, dtype=dtype).as_strided(tuple(shape), tuple(strides), offset)
