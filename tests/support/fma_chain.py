"""The arithmetic of the `simt` float32 kernels, bit for bit, on the CPU.

Each element of the product is one chain of fused multiply-adds over K, in order, from zero.
The kernels' results equal these whatever the tile, the layout or the batch.
"""

import torch


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The float32 product of two float32 matrices by one chain of multiply-adds.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    wide_a, wide_b = a.double(), b.double()
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32)
    for k in range(a.shape[1]):
        total = _add_rounded_once(wide_a[:, k : k + 1] * wide_b[k : k + 1, :], total)
    return total


def _add_rounded_once(exact_product: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """float32(exact_product + addend), rounded once.

    The product of two float32 numbers is exact in float64; the sum is not. Rounding it to odd
    there (an inexact sum gets an odd last bit) keeps what the rounding to float32 has to know.
    """
    x, y = exact_product, addend.double()
    rounded = x + y
    y_part = rounded - x
    lost = (x - (rounded - y_part)) + (y - y_part)  # Knuth's two-sum: rounded + lost == x + y
    is_even = rounded.view(torch.int64) % 2 == 0
    towards = torch.where(lost > 0, torch.inf, -torch.inf).to(torch.float64)
    adjust = is_even & (lost != 0) & rounded.isfinite()
    return torch.where(adjust, torch.nextafter(rounded, towards), rounded).float()
