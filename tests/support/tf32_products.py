"""Products of operands that are rounded to TF32 before: what kernels of TF32 are held to."""

import torch

from tilesmith import emulator
from tilesmith.core.plan import Plan

_ROUNDING = 1e-6  # of sums in float32, relative to the sum of the sizes of their terms


def rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 to 11 bits, to the nearest, and of two to the even one."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(x.isfinite(), ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32), x).double()


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """By rows ("n") or by columns ("t"); in capitals with lines that are not aligned."""
    if layout in "tT":
        return laid_out(x.mT, "n" if layout == "t" else "N").mT
    columns = x.shape[-1]
    pitch = -(-columns // 4) * 4 + int(layout.isupper())
    return x.new_empty(*x.shape[:-1], pitch)[..., :columns].copy_(x)


def assert_right(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> None:
    """In the emulator; with infinities and NaNs where they belong."""
    result = emulator.run(plan, a, b, out=out, seed=1).double()
    exact, size = rounded(a) @ rounded(b), a.double().abs() @ b.double().abs()
    finite = size.isfinite()
    assert ((result - exact).abs() <= _ROUNDING * size)[finite].all()
    torch.testing.assert_close(result[~finite], exact[~finite], equal_nan=True)
