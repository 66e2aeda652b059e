"""What may be relied upon: the same bits again, and how exact they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from tilesmith.explanation.numbers import paragraph
from tilesmith.kernels.operand import TILE_K
from tilesmith.kernels.planes import SCHEMES
from tilesmith.plan import Plan
from tilesmith.problem import Problem

_HOPPER: Final = (9, 0)


@dataclass(frozen=True, slots=True)
class Promises:
    """In words, for one plan. The same call gives the same bits in any case."""

    independent_of_other_rows: bool  # an element depends on its row of A and its column of B alone
    determinism: str
    sums: str  # how those over K are made
    error: str

    @classmethod
    def of(cls, plan: Plan) -> "Promises":
        return cls(_is_independent(plan), _determinism(plan), _sums(plan), _error(plan))

    def lines(self) -> Iterator[str]:
        yield from paragraph(self.determinism, "  same bits  ")
        yield from paragraph(self.sums, "  sums       ")
        yield from paragraph(self.error, "  error      ")


def _is_float32(problem: Problem) -> bool:
    return torch.float32 in (problem.a.dtype, problem.b.dtype)


def _kernel_depends_on_sizes(plan: Plan) -> bool:
    """Kernels of other arithmetic do the same type at other sizes."""
    return _is_float32(plan.problem) and plan.problem.accuracy != "ieee" and plan.device.capability == _HOPPER


def _is_independent(plan: Plan) -> bool:
    return plan.splits == 1 and not _kernel_depends_on_sizes(plan)


def _determinism(plan: Plan) -> str:
    again = "The same call gives the same bits."
    if _is_independent(plan):
        return f"{again} An element depends on its row of A and its column of B alone, whatever the other rows are."
    if plan.splits > 1 and not _kernel_depends_on_sizes(plan):
        return f"{again} How K is split depends on all sizes, so other rows may change the last bits of a row."
    if _has_planes(plan):
        what = "which scheme runs depends on all values, and which kernel on all sizes"
    else:
        what = "which kernel runs depends on all sizes"
    return f"{again} But {what}: other rows may change the last bits of a row."


def _family(plan: Plan) -> str:
    return plan.product.kernel.entry


def _has_planes(plan: Plan) -> bool:
    return _family(plan) == "sm90" and _is_float32(plan.problem)


def _sums(plan: Plan) -> str:
    text = _sums_of_a_part(plan)
    if plan.splits > 1:
        text += f" K is summed in {plan.splits} such parts, which are rounded to float32 and added in their order."
    return text


def _sums_of_a_part(plan: Plan) -> str:
    dtype, family = plan.problem.a.dtype, _family(plan)
    if family in ("exact", "thin", "dot"):
        return "Products are exact, and sums are of doubles, rounded to float32 once."
    if _has_planes(plan):
        if SCHEMES[plan.problem.accuracy].ordinary.planes > 1 and plan.problem.k > TILE_K:
            return f"The tensor cores sum {TILE_K} of K at a time; these sums are added in float32, with rounding."
        return "One sum in float32 on the tensor cores, which cut off what does not fit."
    if family == "sm90":
        return "One sum in float32 on the tensor cores, in the order of K."
    if dtype.is_floating_point:
        chain = "float64" if dtype == torch.float64 else "float32"
        return f"One chain of {chain} multiply-adds, in the order of K."
    return f"One chain of {64 if dtype == torch.int64 else 32}-bit integers."


def _error(plan: Plan) -> str:
    problem, out = plan.problem, str(plan.problem.out.dtype).removeprefix("torch.")
    if not problem.a.dtype.is_floating_point:
        return f"None: exact, with the wrap-around of {out}."
    if problem.a.dtype == torch.float64:
        return "That of one chain of float64 roundings."
    if not _is_float32(problem):
        rounded = "" if problem.out.dtype == torch.float32 else f", and of one rounding to {out}"
        return f"That of sums in float32{rounded}."
    if _family(plan) == "simt":
        chain = "That of one chain of float32 roundings"
        if problem.accuracy == "fp32":
            return f"{chain}: up to twice that of torch's product where torch splits its sums."
        return f"{chain}."
    if _family(plan) in ("exact", "thin", "dot") and plan.splits == 1:
        return "As small as float32 can have it: one rounding."
    if problem.accuracy == "tf32":
        return "No larger than that of torch's TF32 product (docs/accuracy.md has the limits)."
    return (
        "No larger than that of torch's float32 product, in norm and in the worst element, down to 3e-7 and 1e-6 "
        "(docs/accuracy.md has the limits)."
    )
