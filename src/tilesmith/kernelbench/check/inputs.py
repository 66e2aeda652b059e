"""Kinds of inputs: what the problem gives, and others that betray what the given ones hide.

Values are replaced by a secret function of themselves, so that whatever a problem promises of its inputs' structure
still holds: zeros stay zeros (triangles, diagonals), equal values stay equal (symmetry), and a tensor of few different
values (labels, masks) stays as it is.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from tilesmith.kernelbench.check.loading import as_floats, has_nan

_MASK: Final = 2**63 - 1
_FEW: Final = 16  # different values: with no more than these, a tensor is no field of numbers
_LOOKED_AT: Final = 4096  # elements
_TERMS: Final = 1.5  # that a sum over K has left, on average, with the kind "few terms"
_NEAR: Final = 0.25  # of a value may be taken away by the kind "near"
_AT_ONCE: Final = 2**26  # elements; float64 takes twice the memory of float32, and the functions several times that
_EXPONENT: Final = 24  # of large magnitudes, in types with the range of float32
_EXPONENT_OF_HALF: Final = 4
_SPECIAL: Final = (math.inf, -math.inf, math.nan)  # of which a tensor gets about one each

NOT_FINITE: Final = "not finite"

Values = list[Any]  # what is in what get_inputs returns: tensors, and perhaps numbers


def _mixed(bits: Tensor) -> Tensor:
    """A well mixed 62-bit integer for each integer: multiplications modulo 2^64 and shifts."""
    for multiplier in (-7046029254386353131, -4658895280553007687, 7046029254386353087):
        bits = (bits ^ ((bits >> 31) & 0xFFFFFFFF)) * multiplier
    return (bits ^ ((bits >> 29) & 0x7FFFFFFFF)) & (_MASK >> 1)


def _uniform(x: Tensor, secret: int) -> Tensor:
    """For each value, a number between 0 and 1 in float64 that only the secret tells."""
    return _mixed(x.double().contiguous().view(torch.int64) ^ (secret & _MASK)).double() / 2.0**62


def _normal(x: Tensor, secret: int) -> Tensor:
    u = _uniform(x, secret).clamp(2.0**-40, 1 - 2.0**-40)
    return torch.erfinv(2 * u - 1) * math.sqrt(2)


def _large(x: Tensor, secret: int) -> Tensor:
    return _normal(x, secret) * 2.0 ** (_EXPONENT_OF_HALF if x.dtype == torch.float16 else _EXPONENT)


def _near(x: Tensor, secret: int) -> Tensor:
    return x.double() * (1 - _NEAR * _uniform(x, secret))


def _not_finite(x: Tensor, secret: int) -> Tensor:
    values, chance = _near(x, secret), _uniform(x, secret + 1) * x.numel()
    for i, special in enumerate(_SPECIAL):
        values = torch.where((chance >= i) & (chance < i + 1), special, values)
    return values


# Kind -> an elementwise function of the values, the secret, and the share of values that "few terms" leaves.
KINDS: Final[dict[str, Callable[[Tensor, int, float], Tensor]]] = {
    "near": lambda x, secret, share: _near(x, secret),
    "normal": lambda x, secret, share: _normal(x, secret),
    "zeros and ones": lambda x, secret, share: (_uniform(x, secret) < 0.5).double(),
    "large": lambda x, secret, share: _large(x, secret),
    "few terms": lambda x, secret, share: _normal(x, secret) * (_uniform(x, secret + 1) < share),
    NOT_FINITE: lambda x, secret, share: _not_finite(x, secret),
}


def is_numbers(x: object) -> bool:
    """Whether an input is a field of numbers, whose values may be any."""
    if not has_nan(x):
        return False
    x = as_floats(x)
    sample = x.reshape(-1)[:: max(1, x.numel() // _LOOKED_AT)]
    return int(sample.unique().numel()) > min(_FEW, x.numel() // 2)


def of_kind(kind: str, given: Values, secret: int, k: int) -> Values:
    """Inputs of a kind in KINDS, of the given ones' shapes, types and structure."""
    fields = sum(map(is_numbers, given))
    share = min(1.0, (_TERMS / max(k, 1)) ** (1 / max(1, min(fields, 2))))

    def replaced(index: int, x: Any) -> Any:
        if not is_numbers(x):
            return x
        if x.is_complex():
            return torch.view_as_complex(replaced(index, as_floats(x)))
        values = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for old, new in zip(x.reshape(-1).split(_AT_ONCE), values.view(-1).split(_AT_ONCE), strict=True):
            new.copy_(torch.where(old == 0, 0.0, KINDS[kind](old, secret + 2 * index, share)))
        return values

    return [replaced(index, x) for index, x in enumerate(given)]


def transposed(given: Values) -> Values:
    """The values as they are, each matrix stored by columns."""
    return [x.mT.contiguous().mT if isinstance(x, Tensor) and x.dim() >= 2 else x for x in given]


def padded(given: Values) -> Values:
    """The values as they are, in rows that have gaps between them, poisoned where the type has NaN."""
    return [_in_rows_with_gaps(x) if isinstance(x, Tensor) and x.dim() >= 1 else x for x in given]


def _in_rows_with_gaps(x: Tensor) -> Tensor:
    *outer, last = x.shape
    buffer = torch.full((*outer, last + 3), math.nan if has_nan(x) else 1, dtype=x.dtype, device=x.device)
    inside = buffer[..., :last]
    inside.copy_(x)
    return inside


def shifted(given: Values) -> Values:
    """The values as they are, each tensor behind the start of its memory by one element, which is poisoned."""
    return [_behind_the_start(x) if isinstance(x, Tensor) else x for x in given]


def _behind_the_start(x: Tensor) -> Tensor:
    poison = math.nan if has_nan(x) else 1
    buffer = torch.full((1 + x.numel(),), poison, dtype=x.dtype, device=x.device)
    inside = buffer[1:].view(x.shape)
    inside.copy_(x)
    return inside


def smaller(given: Values) -> Values | None:
    """Leading parts of the given inputs: every dimension of one size becomes the same smaller, odd size. None where
    an input may be an index, or a size is all that it is."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    if not tensors or len(tensors) < len(given) or not all(map(has_nan, tensors)):
        return None
    return [x[tuple(slice(_smaller(size)) for size in x.shape)].contiguous() for x in tensors]


def _smaller(size: int) -> int:
    """
    >>> [_smaller(size) for size in (1, 2, 3, 16, 1000, 4096)]
    [1, 1, 1, 11, 625, 2561]
    """
    return min(size, size * 5 // 8 | 1)
