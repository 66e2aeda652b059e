"""Whether the result of a drawn product is right: within the error that its accuracy promises, of float64.

docs/accuracy.md has the promises, and their limits; tests/gpu holds the kernels to the same ones.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from drawn_calls import Tensors
from drawn_cases import Case
from drawn_plans import Planned
from tf32_products import rounded
from torch import Tensor
from torchs_linear import ACTIVATED

from tilesmith.core.checks import SIXTEEN_BITS

_COMP_FLOOR: Final = 1e-6  # of float32 products
_NORM_FLOOR: Final = 3e-7
_TF32_ROUNDINGS: Final = 2.2 * 2.0**-11  # of two operands to 11 bits, and a hair
_TF32_NORM: Final = 1.05  # times that of TF32, on data where chance has no part in it
_ORDINARY: Final = ("uniform", "normal", "lognormal", "outliers")
_WALK: Final = 4.0  # times the square root of K roundings: the worst of millions of sums
_VANISHING: Final = 1 / 8  # of K roundings: a long chain of lognormal values loses most of its small terms, one by one
_CUT_OFF: Final = 2.0**-27  # of a sum for each of K, by tensor cores, which do not round
_STEEPEST: Final = 1.13  # slope of any activation
_ROUNDINGS_OF_ACTIVATION: Final = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out. The worst error is relative to the largest one that is right."""

    worst: float
    problem: str | None = None  # what is wrong, if anything is


@dataclass(frozen=True, slots=True)
class Exact:
    """A result in float64, and what its error may grow with."""

    product: Tensor
    size: Tensor  # the same sums, if no terms cancelled
    before_activation: Tensor
    after_activation: Tensor
    added: Tensor  # what comes last
    result: Tensor


def exact_result(case: Case, tensors: Tensors) -> Exact:
    """To be taken before the call, which may not change its operands."""
    a, b = tensors.a.tensor.double(), tensors.b.tensor.double()
    product = torch.matmul(a, b)
    zero = product.new_zeros(())
    bias = zero if tensors.bias is None else tensors.bias.tensor.double()
    before = case.scale * product + bias
    after = ACTIVATED[case.activation](before)
    is_read = tensors.residual is not None and case.residual_scale != 0
    added = case.residual_scale * tensors.residual.tensor.double() if is_read and tensors.residual is not None else zero
    return Exact(product, torch.matmul(a.abs(), b.abs()), before, after, added, after + added)


def judged(case: Case, planned: Planned, tensors: Tensors, exact: Exact, result: Tensor) -> Verdict:
    """Its shape and type, every element, and all that must not have been written."""
    if tuple(result.shape) != case.shape or result.dtype != case.dtype:
        return Verdict(math.inf, f"it is {result.dtype} of shape {tuple(result.shape)}")
    touched = torch.stack([guarded.count_touched() for guarded in tensors.guarded]).sum()
    if result.numel() == 0:
        wrong, worst = touched.new_zeros(()), touched.new_zeros((), dtype=torch.float64)
    elif not case.dtype.is_floating_point:
        wrong = (result != exact.product.to(torch.int64).to(case.dtype)).sum()
        worst = wrong.double()
    else:
        wrong, worst = _compared(case, planned, tensors, exact, result)
    count, outside, error = torch.stack([wrong.double(), touched.double(), worst]).tolist()
    if outside:
        return Verdict(math.inf, f"{outside:.0f} elements outside of its tensors were written")
    if count:
        return Verdict(error, f"{count:.0f} of {result.numel()} elements are wrong, the worst {error:.3g} times")
    return Verdict(error, f"its error is {error:.3g} times what it may be" if error > 1 else None)


def _compared(case: Case, planned: Planned, tensors: Tensors, exact: Exact, result: Tensor) -> tuple[Tensor, Tensor]:
    """How many elements are wrong, and the worst error of an element or of all of them together."""
    found, expected = result.double(), exact.result
    is_finite = expected.isfinite()
    may_overflow = _may_overflow(case, exact)
    is_sure = is_finite & ~may_overflow
    factor, norm = _factor_and_norm(case, planned, tensors, exact, found, is_sure & exact.product.isfinite())
    bound = _bound(case, exact, factor)
    difference = (found - expected).abs()
    within = difference <= bound
    same_kind = (found == expected) | (found.isnan() & expected.isnan())
    must_overflow = may_overflow & (expected.abs() > 1.01 * torch.finfo(case.dtype).max + bound)
    overflown = may_overflow & ~found.isfinite() & (_may_turn(case, exact) | (found == expected.sign() * math.inf))
    right = torch.where(is_finite, (within & ~must_overflow) | overflown, same_kind)
    ratios = torch.where(is_sure & (difference > 0), difference / bound, 0.0).nan_to_num(math.inf, math.inf)
    return (~right).sum(), torch.maximum(ratios.amax(), norm)


def _may_overflow(case: Case, exact: Exact) -> Tensor:
    """Where a sum, or what is made of it, may have left the range of its type on the way."""
    largest_sum = torch.finfo(torch.float64 if case.a.dtype == torch.float64 else torch.float32).max
    largest = torch.finfo(case.dtype).max
    sizes = torch.maximum(exact.size, exact.size * abs(case.scale)) + exact.before_activation.abs()
    may = (sizes >= largest_sum / 4) | (exact.result.abs() * 1.01 >= largest)
    if case.activation is not None and case.dtype in SIXTEEN_BITS:
        may |= exact.before_activation.abs() * 1.01 >= largest
    return may & exact.product.isfinite()


def _may_turn(case: Case, exact: Exact) -> Tensor | bool:
    """Where an overflow may end in a NaN, or on the other side: an infinity may have met the opposite one, or an
    activation."""
    if case.activation is not None:
        return True
    against = (exact.size - exact.product.abs()) / 2  # the sum of the terms of the other sign
    return against * max(abs(case.scale), 1) >= torch.finfo(torch.float32).max / 8


def _bound(case: Case, exact: Exact, factor: Tensor | float) -> Tensor:
    """The largest error of each element, where that of the product is so many times its size."""
    unit = 2.0**-53 if case.a.dtype == torch.float64 else 2.0**-24
    limits = torch.finfo(case.dtype)
    smallest = limits.tiny * limits.eps
    # An activation may make a number of an infinity, and that has no error.
    size, product, before = (_finite(x.abs()) for x in (exact.size, exact.product, exact.before_activation))
    error = factor * abs(case.scale) * size
    if case.call == "matmul" and case.resolved in ("fp32", "tf32", "ieee"):
        return error + smallest  # of which their last rounding is a part
    half_ulp = 1.01 * limits.eps / 2
    error = error + 3 * unit * (abs(case.scale) * product + before)
    if case.activation is not None:
        rounded = half_ulp * before if case.dtype in SIXTEEN_BITS else 0.0
        error = _STEEPEST * (error + rounded) + _ROUNDINGS_OF_ACTIVATION * unit * before
    error = error + 2 * unit * (_finite(exact.after_activation.abs()) + exact.added.abs())
    return error + half_ulp * exact.result.abs() + smallest


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0)


def _factor_and_norm(
    case: Case, planned: Planned, tensors: Tensors, exact: Exact, found: Tensor, is_sure: Tensor
) -> tuple[Tensor | float, Tensor]:
    """The error that a product may have relative to its size; and the norm of all errors, relative to the one that is
    promised, or 0 where none is."""
    k, none = case.k, exact.product.new_zeros(())
    roundings = min(k + 1, _WALK * math.sqrt(k) + 2)
    match case.resolved:
        case "float64":
            return 2 * roundings * 2.0**-53, none  # the reference has no better
        case "ieee":
            vanishing = _VANISHING * k if case.values == "lognormal" else 0.0
            return max(roundings, vanishing) * 2.0**-24, none
        case "fp32" | "tf32" as accuracy:
            theirs = _torchs_product(tensors, accuracy)
            comp, torchs_norm = _errors(theirs, exact.product, exact.size, is_sure)
        case _:  # 16 bits
            return roundings * 2.0**-24 + k * _CUT_OFF + 2.0**-22, none
    _, norm = _errors(found, exact.product, exact.size, is_sure)
    if accuracy == "tf32":
        has_norm = case.values in _ORDINARY and found.numel() >= 10_000
        # torch does not use TF32 for every product: small ones, and lines that are not aligned.
        rounded_comp, rounded_norm = _errors(_product_of_rounded(tensors), exact.product, exact.size, is_sure)
        promised = _TF32_NORM * torch.maximum(torchs_norm, rounded_norm) + _NORM_FLOOR
        factor = (1.2 * torch.maximum(comp, rounded_comp)).clamp(min=_TF32_ROUNDINGS + k * _CUT_OFF)
    else:
        # Where few terms cancel, or there are few elements, chance decides who loses more: see docs/accuracy.md.
        by_terms = planned.plan.product.kernel.entry.startswith("gemm")
        has_norm = not by_terms or (found.numel() >= 100 and (case.values != "cancelling" or k >= 100))
        promised, factor = torchs_norm.clamp(min=_NORM_FLOOR), (1 + 1e-9) * comp.clamp(min=_COMP_FLOOR)
    return factor, norm / promised if has_norm and case.call == "matmul" else none


def _errors(product: Tensor, exact: Tensor, size: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """comp and norm over the elements of a mask, as bench.errors has them."""
    wrong = torch.where(where, (product - exact).abs(), 0.0)
    comp = torch.where(wrong == 0, 0.0, wrong / size).amax()
    # Squares of the largest and smallest results leave even float64.
    scale = torch.where(where, exact, 0.0).abs().amax().clamp(min=1e-300)
    norm, whole = ((x / scale).square().sum().sqrt() for x in (wrong, torch.where(where, exact, 0.0)))
    return comp, torch.where(norm == 0, 0.0, norm / whole)


def _torchs_product(tensors: Tensors, accuracy: str) -> Tensor:
    with _torchs_precision("tf32" if accuracy == "tf32" else "ieee"):
        return torch.matmul(tensors.a.tensor.float(), tensors.b.tensor.float()).double()


def _product_of_rounded(tensors: Tensors) -> Tensor:
    """The exact product of operands that are rounded to the 11 bits of TF32."""
    a, b = (rounded(x.tensor.float()) for x in (tensors.a, tensors.b))
    return torch.matmul(a, b)


@contextmanager
def _torchs_precision(name: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = name
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
