"""What the planner knows of a kernel family."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilesmith.device import Device
from tilesmith.plan import Cost, Plan, Rejection
from tilesmith.problem import Problem


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that could be made, and what it would cost."""

    name: str
    cost: Cost
    plan: Callable[[], Plan]

    @property
    def cycles(self) -> float:
        """Expected clocks of the device."""
        return self.cost.cycles


@dataclass(frozen=True, slots=True)
class Family:
    """A family of kernels: one legality predicate, and the plans it offers for a legal problem."""

    name: str
    rejects: Callable[[Problem, Device], str | None]  # why it cannot do this problem; None if it can
    candidates: Callable[[Problem, Device], Iterable[Candidate]]
    exclusions: Callable[[Problem, Device], Iterable[Rejection]]  # configurations that are no candidates, and why
