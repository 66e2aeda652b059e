"""Legal candidates, their cost, the cheapest one; and, if somebody asks, a reason for each of the others."""

from collections.abc import Iterator
from dataclasses import replace

from tilesmith.core.device import Device
from tilesmith.core.plan import Plan, Rejection
from tilesmith.core.problem import Problem
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.family import Candidate, Family, without_idle_fallbacks
from tilesmith.planner import tuned


def choose(problem: Problem, device: Device) -> Plan:
    """The plan that was measured to be the fastest here, if `tilesmith tune` did; else the one with the fewest expected
    clocks among all that are legal on this device."""
    if (preferred := tuned.preferred(problem, device)) is not None:
        measured = next((each for each in candidates(problem, device) if each.name == preferred), None)
        if measured is not None:
            return replace(measured.plan(), is_tuned=True)
    best: Candidate | None = None
    for family in _legal(problem, device):
        if best is not None and family.min_cycles is not None and family.min_cycles(problem, device) >= best.cycles:
            continue
        offer = _cheapest(family, problem, device)
        if offer is not None and (best is None or offer.cycles < best.cycles):
            best = offer
    if best is None:
        raise ValueError(f"no family can do {problem}")
    return best.plan()


def _cheapest(family: Family, problem: Problem, device: Device) -> Candidate | None:
    if family.cheapest is not None:
        return family.cheapest(problem, device)
    return min(family.candidates(problem, device), key=lambda candidate: candidate.cycles, default=None)


def _legal(problem: Problem, device: Device) -> list[Family]:
    """The families that can do the problem. A fallback is none where there is another."""
    return without_idle_fallbacks([family for family in FAMILIES if family.rejects(problem, device) is None])


def candidates(problem: Problem, device: Device) -> list[Candidate]:
    """Every plan that is legal on this device."""
    return [candidate for family in _legal(problem, device) for candidate in family.candidates(problem, device)]


def rejections(plan: Plan) -> Iterator[Rejection]:
    """All that was considered and not taken, each with its reason."""
    problem, device = plan.problem, plan.device
    for family in FAMILIES:
        if reason := _rejects(family, problem, device):
            yield Rejection(family.name, reason)
        else:
            yield from family.exclusions(problem, device)
    for candidate in candidates(problem, device):
        if candidate.name != plan.name:
            more = f"expected to take {candidate.cycles / plan.cycles:.2f} times as long"
            reason = "another was measured to be the fastest" if plan.is_tuned else more
            yield Rejection(candidate.name, reason, candidate.cycles)


def _rejects(family: Family, problem: Problem, device: Device) -> str | None:
    if family.is_fallback and (others := _others(family, problem, device)):
        # Not by cost: a row's result shall not depend on how many others there are, nor have more error than torch's.
        return f"is for what no other family can do, and {others[0]} can do this"
    return family.rejects(problem, device)


def _others(family: Family, problem: Problem, device: Device) -> list[str]:
    others = (each for each in FAMILIES if each is not family and not each.leaves_small_to_fallback)
    return [each.name for each in others if each.rejects(problem, device) is None]


def is_possible(problem: Problem, device: Device) -> bool:
    """Whether any family can do it: of operands of one type, all problems are."""
    return any(family.rejects(problem, device) is None for family in FAMILIES)


def packing(problem: Problem, device: Device) -> Plan | None:
    """The plan that packs the operand of the problem that is to be; None if no family gains from it."""
    plans = (family.packing(problem, device) for family in FAMILIES if family.packing is not None)
    return next((plan for plan in plans if plan is not None), None)
