"""Tensors on the GPU that betray a kernel which reads or writes outside of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilesmith.core.device import Device, installed
from tilesmith.core.plan import Plan
from tilesmith.runtime.executor import compiled

_BAND = 1024  # elements before and after
INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def poison(dtype: torch.dtype) -> float | int:
    """A value that no result should have: a NaN spreads, an odd integer stands out."""
    return float("nan") if dtype.is_floating_point else 113


@dataclass(frozen=True)
class Guarded:
    """A tensor in the middle of a poisoned buffer, whose gaps are poisoned too."""

    tensor: torch.Tensor
    _buffer: torch.Tensor
    _is_inside: torch.Tensor

    @classmethod
    def empty(
        cls, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, shift: int = 0, device: str = "cuda"
    ) -> "Guarded":
        """Poisoned all over; the tensor starts `shift` elements after an aligned address."""
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        length = max(span, 0) + shift + 2 * _BAND
        buffer = torch.full((length,), poison(dtype), dtype=dtype, device=device)
        is_inside = torch.zeros(length, dtype=torch.bool, device=device)
        where = (tuple(shape), tuple(strides), _BAND + shift)
        is_inside.as_strided(*where).fill_(True)
        return cls(buffer.as_strided(*where), buffer, is_inside)

    @classmethod
    def like(cls, values: torch.Tensor, shift: int = 0) -> "Guarded":
        """A copy of a tensor, with its strides."""
        guarded = cls.empty(values.shape, values.stride(), values.dtype, shift)
        guarded.tensor.copy_(values)
        return guarded

    def count_touched(self) -> torch.Tensor:
        """How many elements around it, or in its gaps, have other bits than before, on its device."""
        bits = INTEGER_OF_SIZE[self._buffer.itemsize]
        was = torch.full((1,), poison(self._buffer.dtype), dtype=self._buffer.dtype, device=self._buffer.device)
        return ((self._buffer.view(bits) != was.view(bits)) & ~self._is_inside).sum()

    def assert_outside_untouched(self) -> None:
        expected = torch.full_like(self._buffer, poison(self._buffer.dtype))
        outside = ~self._is_inside
        torch.testing.assert_close(self._buffer[outside], expected[outside], rtol=0, atol=0, equal_nan=True)


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    return list(torch.empty(tuple(shape), device="meta").stride())


def few_sms() -> Device:
    """The GPU with a few of its SMs: blocks then have several tiles, however small the product is."""
    return replace(installed(0), sm_count=4)


def assert_same(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def assert_exact(plan: Plan, a: Guarded, b: Guarded, out: Guarded) -> None:
    """The plan computes the product of integers, twice, and touches nothing else."""
    expected = (a.tensor.double() @ b.tensor.double()).to(out.tensor.dtype)
    product = compiled(plan, 0)
    for _ in range(2):
        out.tensor.fill_(float("nan"))
        product(a.tensor, b.tensor, out.tensor)
        torch.testing.assert_close(out.tensor, expected, rtol=0, atol=0)
    for guarded in (a, b, out):
        guarded.assert_outside_untouched()
