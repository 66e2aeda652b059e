"""Legal candidates, their cost, the cheapest one; and a reason for each of the others."""

from dataclasses import replace

from tilesmith.device import Device
from tilesmith.kernels import FAMILIES, sm90
from tilesmith.kernels.family import Candidate
from tilesmith.plan import Plan, Rejection
from tilesmith.problem import Problem


def choose(problem: Problem, device: Device) -> Plan:
    """The plan with the fewest expected clocks among all that are legal on this device."""
    rejections: list[Rejection] = []
    legal: list[Candidate] = []
    for family in FAMILIES:
        if reason := family.rejects(problem, device):
            rejections.append(Rejection(family.name, reason))
        else:
            legal.extend(family.candidates(problem, device))
            rejections.extend(family.exclusions(problem, device))
    best = min(legal, key=lambda candidate: candidate.cycles)
    for candidate in legal:
        if candidate is not best:
            more = candidate.cycles / best.cycles
            reason = f"expected to take {more:.2f} times as long"
            rejections.append(Rejection(candidate.name, reason, candidate.cycles))
    return replace(best.plan(), rejections=tuple(rejections))


def is_possible(problem: Problem, device: Device) -> bool:
    """Whether any family can do it: of operands of one type, all problems are."""
    return any(family.rejects(problem, device) is None for family in FAMILIES)


def packing(problem: Problem, device: Device) -> Plan | None:
    """The plan that packs the operand of the problem that is to be; None if no family gains from it."""
    return sm90.packing(problem, device)
