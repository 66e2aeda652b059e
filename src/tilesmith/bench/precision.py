"""Error bounds that know K, and the precision classes that they make.

An error is |C - C64| / S, the largest of all elements, where S is what the same sum would be if no terms cancelled
(|A| |B| for a product). A chain of K roundings adds up as a random walk does, to the square root of K of them; the
operands of a class are rounded before that, once each.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch

CLASSES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "worse")  # the best first

# Bits of the significand, the hidden one included.
_BITS: Final = {"fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8}
_OF_DTYPE: Final = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}
_WALK: Final = 2.0  # an error may be this many times what K roundings add up to
_FLOOR_OF_FP32: Final = 2.0**-20  # splitting float32 into halves keeps 22 of 24 bits, and is float32 all the same
_AS_TORCH: Final = 2.0  # as wrong as torch in the same precision, times this, is right
_AS_MODELLED: Final = 2.0  # where no bound is known, this many times the error of operands that are cut off


def best_class(dtype: torch.dtype) -> str | None:
    """The class that results of a dtype can have at best, and must have; None for integers.

    >>> best_class(torch.float32), best_class(torch.int64)
    ('fp32', None)
    """
    return _OF_DTYPE.get(dtype)


def bounds_of_product(k: int, own_error: float) -> dict[str, float]:
    """The largest error of each class for sums of K products, where torch itself has `own_error` in its own dtype."""
    walk = _WALK * math.sqrt(max(k, 1))
    wide = walk * 2.0**-24  # every class but fp64 may add in float32
    bounds = {
        "fp64": max(walk * 2.0**-53, 2.0**-50),
        "fp32": max(wide, _FLOOR_OF_FP32),
    }
    for name in ("tf32", "fp16", "bf16"):
        # Two operands, each cut off rather than rounded, and a hair for the second order; the result is rounded too.
        bounds[name] = 2.2 * 2.0 ** (1 - _BITS[name]) + wide
    return _at_least_as_torch(bounds, own_error)


def bounds_of_model(own_error: float, modelled: Mapping[str, float]) -> dict[str, float]:
    """The bounds of a model that is more than a product: `modelled` has the error of the model when its operands are
    cut off to each class."""
    bounds = {"fp64": max(2.0**-44, _AS_TORCH * own_error), "fp32": _FLOOR_OF_FP32}
    for name in ("tf32", "fp16", "bf16"):
        bounds[name] = _AS_MODELLED * modelled[name]
    return _at_least_as_torch(bounds, own_error)


def _at_least_as_torch(bounds: dict[str, float], own_error: float) -> dict[str, float]:
    """No class asks for more than torch's float32 does."""
    if math.isfinite(own_error):
        bounds["fp32"] = max(bounds["fp32"], _AS_TORCH * own_error)
    reached = bounds["fp32"]
    for name in ("tf32", "fp16", "bf16"):
        bounds[name] = reached = max(bounds[name], reached)
    return bounds


def classify(error: float, bounds: Mapping[str, float], dtype: torch.dtype) -> str:
    """The best class whose bound an error keeps and that results of the dtype can have.

    >>> bounds = bounds_of_product(256, 0.0)
    >>> [classify(error, bounds, torch.float32) for error in (0.0, 1e-6, 1e-4, 5e-3, 0.1, float("nan"))]
    ['fp32', 'fp32', 'tf32', 'bf16', 'worse', 'worse']
    >>> classify(1e-4, bounds, torch.float16)
    'fp16'
    """
    first = CLASSES.index(_OF_DTYPE[dtype])
    for name in CLASSES[first:-1]:
        if error <= bounds[name]:
            return name
    return "worse"


def worst(classes: list[str]) -> str:
    """The worst of some classes.

    >>> worst(["fp32", "bf16", "tf32"])
    'bf16'
    """
    return max(classes, key=CLASSES.index)


def keeps(found: str, required: str) -> bool:
    """Whether a class is as good as another.

    >>> keeps("fp32", "tf32"), keeps("bf16", "tf32")
    (True, False)
    """
    return CLASSES.index(found) <= CLASSES.index(required)


def narrowed(x: torch.Tensor, name: str, to_integer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A float tensor with no more bits than the class keeps, of any exponent, cut off or rounded as `to_integer` does.

    >>> narrowed(torch.tensor([1 + 2.0**-9], dtype=torch.float64), "bf16", torch.trunc).item()
    1.0
    """
    significand, exponent = torch.frexp(x)
    return torch.ldexp(to_integer(significand * 2.0 ** _BITS[name]), exponent - _BITS[name])
