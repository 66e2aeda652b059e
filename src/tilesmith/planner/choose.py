"""Legal candidates, their cost, the cheapest one; and a reason for each of the others."""

from dataclasses import replace

from tilesmith.device import Device
from tilesmith.kernels import FAMILIES
from tilesmith.plan import Plan, Rejection
from tilesmith.problem import Problem


def choose(problem: Problem, device: Device) -> Plan:
    """The plan with the fewest expected clocks among all that are legal on this device."""
    rejections: list[Rejection] = []
    legal: list[Plan] = []
    for family in FAMILIES:
        if reason := family.rejects(problem, device):
            rejections.append(Rejection(family.name, reason))
        else:
            legal.extend(family.candidates(problem, device))
            rejections.extend(family.exclusions(problem, device))
    best = min(legal, key=lambda plan: plan.cycles)
    for plan in legal:
        if plan is not best:
            more = plan.cycles / best.cycles
            rejections.append(Rejection(plan.name, f"expected to take {more:.2f} times as long"))
    return replace(best, rejections=tuple(rejections))
