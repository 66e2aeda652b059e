"""How far a float product is from the exact one: two numbers, against float64."""

from dataclasses import dataclass
from typing import Final

import torch

_ROWS_AT_ONCE: Final = 4096  # float64 copies of a whole large product would not fit


@dataclass(frozen=True, slots=True)
class Error:
    """The errors of a product C of A and B.

    comp: the largest |C - C64| / (|A| |B|) of all elements, less what C's type cannot have of numbers that are tiny
    norm: the Frobenius norm of C - C64 relative to that of C64
    """

    comp: float
    norm: float

    def __str__(self) -> str:
        return f"{self.comp:.1e} / {self.norm:.1e}"


def error(product: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Error:
    """The error of `product` as the matrix product of a and b, which are 2-D or batches of one shape. NaN if any
    element is NaN.

    >>> a = torch.rand(5, 7); error(a.double() @ a.double().T, a, a.T)
    Error(comp=0.0, norm=0.0)
    """
    result = torch.finfo(product.dtype)
    underflow = result.smallest_normal * result.eps / 2  # half of the distance of numbers that are subnormal
    comp = torch.zeros((), dtype=torch.float64, device=a.device)
    wrong, size = comp.clone(), comp.clone()
    for one_product, one_a, one_b in zip(*(x if x.dim() == 3 else x[None] for x in (product, a, b)), strict=True):
        exact_b = one_b.double()
        for first in range(0, one_a.shape[0], _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            exact_a = one_a[rows].double()
            exact = exact_a @ exact_b
            difference = (one_product[rows].double() - exact).abs_()
            size += exact.square().sum()
            wrong += difference.square().sum()
            scale = exact_a.abs() @ exact_b.abs()
            relative = torch.where(difference <= underflow, 0.0, (difference - underflow) / scale)
            comp = torch.maximum(comp, relative.max())
    norm = torch.where(wrong == 0, 0.0, (wrong / size).sqrt())
    return Error(comp=comp.item(), norm=norm.item())
