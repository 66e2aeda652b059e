"""The sums of tensor cores: of Hopper's to the last bit."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WGMMA_K = 16
KEPT_BITS = 25  # of a fraction below the largest exponent: float32's 23, and two more

MIN_EXPONENT = {"float16": -14, "bfloat16": -126}
_MIN_OF_FLOAT32 = -126


def tensor_core_step(sum_: Array, a: Array, b: Array, dtype: str = "float16", kept_bits: int = KEPT_BITS) -> Array:
    """sum + a b for 16 of K, as Hopper adds them up. The products are exact. They and the sum are cut off two bits
    below the last place of the largest exponent, added, and the total is cut off to float32's bits. The exponent of a
    product is the sum of its factors' exponents, of which those of subnormal numbers are the type's least."""
    products = a[..., :, :, None] * b[..., None, :, :]
    powers = _power(a, MIN_EXPONENT[dtype])[..., :, :, None] * _power(b, MIN_EXPONENT[dtype])[..., None, :, :]
    largest = np.maximum(powers.max(axis=-2), _power(sum_, _MIN_OF_FLOAT32))
    is_finite = np.isfinite(products).all(axis=-2) & np.isfinite(sum_)
    quantum = np.where(is_finite & (largest > 0), largest, 1.0) * 2.0**-kept_bits
    with np.errstate(invalid="ignore"):
        total = (np.trunc(products / quantum[..., None, :]).sum(axis=-2) + np.trunc(sum_ / quantum)) * quantum
        last_place = np.ldexp(1.0, np.maximum(np.frexp(np.where(is_finite, total, 0.0))[1] - 24, -149))
        total = np.trunc(total / last_place) * last_place
        total = np.where(np.abs(total) >= 2.0**128, np.copysign(np.inf, total), total)
        result: Array = np.where(is_finite, total, products.sum(axis=-2) + sum_)
    return result


def _power(values: Array, least: int) -> Array:
    """Two to the power of a number's exponent; 0 for zero, and for what is not finite."""
    usual = np.where(np.isfinite(values), values, 0.0)
    return np.where(usual == 0.0, 0.0, np.ldexp(1.0, np.maximum(np.frexp(usual)[1] - 1, least)))
