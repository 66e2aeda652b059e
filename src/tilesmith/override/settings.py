"""What a user asks of an override: a frozen value, checked when it is made."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tilesmith.core.accuracy import Numerics, numerics
from tilesmith.core.problem import Problem

OPERATORS: Final = ("mm", "addmm", "bmm", "baddbmm")

Predicate = Callable[[Problem], bool]
Choice = str | Iterable[str] | Predicate | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Which products Tilesmith should take, and how exact those of float32 are."""

    numerics: Numerics | None = None  # None follows torch's setting at the time of a call
    include: frozenset[str] | Predicate | None = None
    exclude: frozenset[str] | Predicate | None = None
    min_flops: int = 0
    times: bool = False

    @classmethod
    def of(cls, accuracy: str | None, include: Choice, exclude: Choice, min_flops: int, times: bool) -> "Settings":
        """The settings of an `override` with these arguments.

        >>> Settings.of(None, "mm", None, 0, False).include
        frozenset({'mm'})
        """
        return cls(
            numerics=None if accuracy is None else numerics(accuracy),
            include=_checked("include", include),
            exclude=_checked("exclude", exclude),
            min_flops=min_flops,
            times=times,
        )

    def leaves(self, operator: str) -> str | None:
        """Why a name alone decides that an operator stays with torch; None if it does not."""
        if isinstance(self.include, frozenset) and operator not in self.include:
            return "not in include"
        if isinstance(self.exclude, frozenset) and operator in self.exclude:
            return "in exclude"
        return None

    def leaves_problem(self, problem: Problem) -> str | None:
        """Why a product stays with torch; None if it does not."""
        if problem.flops < self.min_flops:
            return "fewer than min_flops"
        if callable(self.include) and not self.include(problem):
            return "not in include"
        if callable(self.exclude) and self.exclude(problem):
            return "in exclude"
        return None


def _checked(name: str, choice: Choice) -> frozenset[str] | Predicate | None:
    if choice is None or callable(choice):
        return choice
    names = frozenset({choice} if isinstance(choice, str) else choice)
    if unknown := sorted(names - set(OPERATORS)):
        raise ValueError(f"{name} takes {', '.join(map(repr, OPERATORS))}, or a function, not {unknown[0]!r}")
    return names
