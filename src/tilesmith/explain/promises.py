"""What may be relied upon: the same bits again, and how exact they are."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.core.numbers import paragraph
from tilesmith.core.plan import Plan
from tilesmith.kernels import FAMILIES, family_of, split_k_reduce
from tilesmith.kernels.family import without_idle_fallbacks


@dataclass(frozen=True, slots=True)
class Promises:
    """In words, for one plan. The same call gives the same bits in any case."""

    independent_of_other_rows: bool  # an element depends on its row of A and its column of B alone
    determinism: str
    sums: str  # how those over K are made
    error: str

    @classmethod
    def of(cls, plan: Plan) -> "Promises":
        words = family_of(plan).sum_words(plan)
        sums = words.sums
        if plan.split_k > 1:
            rounded = "rounded to float32 and " if _rounds_parts(plan) else ""
            sums += f" K is summed in {plan.split_k} such parts, which are {rounded}added in their order."
        if (sets := _sets_of_warps(plan)) > 1:
            sums += f" {sets} sets of warps divide K, and their sums are added in their order."
        is_independent = not _splits_k(plan) and not _sizes_decide(plan)
        return cls(is_independent, _determinism(plan, words.values_decide), sums, words.error)

    def lines(self) -> Iterator[str]:
        yield from paragraph(self.determinism, "  same bits  ")
        yield from paragraph(self.sums, "  sums       ")
        yield from paragraph(self.error, "  error      ")


def _splits_k(plan: Plan) -> bool:
    """Whether sums of parts of K are added, among blocks or inside of them."""
    return plan.split_k > 1 or _sets_of_warps(plan) > 1


def _rounds_parts(plan: Plan) -> bool:
    constants = (each.kernel.constants for each in plan.launches)
    return any(isinstance(each, split_k_reduce.Constants) and each.Partial == "float" for each in constants)


def _sets_of_warps(plan: Plan) -> int:
    """Those that divide K."""
    return 1 if plan.tiling is None else plan.tiling.worker_sets


def _sizes_decide(plan: Plan) -> bool:
    """Whether kernels of other arithmetic do the same types at other sizes. Those that sum in the same way have the
    same bits."""
    serving = without_idle_fallbacks([family for family in FAMILIES if family.serves(plan.problem, plan.device)])
    return len({family.sum_words(plan) for family in serving}) > 1


def _determinism(plan: Plan, values_decide: bool) -> str:
    again = "The same call gives the same bits."
    if not _sizes_decide(plan):
        if _splits_k(plan):
            return f"{again} How K is split depends on all sizes, so other rows may change the last bits of a row."
        return f"{again} An element depends on its row of A and its column of B alone, whatever the other rows are."
    what = "which kernel runs depends on all sizes"
    if values_decide:
        what = "which scheme runs depends on all values, and which kernel on all sizes"
    return f"{again} But {what}: other rows may change the last bits of a row."
