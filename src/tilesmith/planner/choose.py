"""Legal candidates, their cost, the cheapest one; and a reason for each of the others."""

from dataclasses import replace

from tilesmith.device import Device
from tilesmith.kernels import FAMILIES, sm90
from tilesmith.kernels.family import Candidate
from tilesmith.plan import Plan, Rejection
from tilesmith.planner import tuned
from tilesmith.problem import Problem


def choose(problem: Problem, device: Device) -> Plan:
    """The plan that was measured to be the fastest here, if `tilesmith tune` did; else the one with the fewest expected
    clocks among all that are legal on this device."""
    legal = candidates(problem, device)
    expected = min(legal, key=lambda candidate: candidate.cycles)
    preferred = tuned.preferred(problem, device)
    measured = next((candidate for candidate in legal if candidate.name == preferred), None)
    best = measured or expected
    rejections = list(_illegal(problem, device))
    for candidate in legal:
        if candidate is not best:
            more = candidate.cycles / best.cycles
            reason = (
                "another was measured to be the fastest" if measured else f"expected to take {more:.2f} times as long"
            )
            rejections.append(Rejection(candidate.name, reason, candidate.cycles))
    return replace(best.plan(), is_tuned=measured is not None, rejections=tuple(rejections))


def candidates(problem: Problem, device: Device) -> list[Candidate]:
    """Every plan that is legal on this device."""
    legal = (family for family in FAMILIES if family.rejects(problem, device) is None)
    return [candidate for family in legal for candidate in family.candidates(problem, device)]


def _illegal(problem: Problem, device: Device) -> list[Rejection]:
    rejections = []
    for family in FAMILIES:
        if reason := family.rejects(problem, device):
            rejections.append(Rejection(family.name, reason))
        else:
            rejections.extend(family.exclusions(problem, device))
    return rejections


def is_possible(problem: Problem, device: Device) -> bool:
    """Whether any family can do it: of operands of one type, all problems are."""
    return any(family.rejects(problem, device) is None for family in FAMILIES)


def packing(problem: Problem, device: Device) -> Plan | None:
    """The plan that packs the operand of the problem that is to be; None if no family gains from it."""
    return sm90.packing(problem, device)
