"""What the families share that multiply float32 in doubles."""

import torch

from tilesmith.core.device import Device
from tilesmith.core.problem import Problem


def runs_on(device: Device) -> bool:
    return device.capability == (9, 0)


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if not runs_on(device):
        return "its products of doubles are fast on compute capability 9.0"
    if {problem.a.dtype, problem.b.dtype} != {torch.float32} or problem.accuracy == "ieee":
        return "is for float32, and does not sum in one chain"
    return None


def rejects(problem: Problem, device: Device) -> str | None:
    """Why none of them can do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    return None


def rejects_single(problem: Problem, device: Device) -> str | None:
    """Why those cannot do the problem that do one product, and count its sizes with 32 bits."""
    if reason := rejects(problem, device):
        return reason
    if problem.batch:
        return "does single products"
    if max(problem.m, problem.n, problem.k) > 2**31 - 2**16:
        return "its sizes cannot be counted with 32 bits"
    return None


def swap_ab_for_few_rows(problem: Problem) -> Problem:
    """The product, or its transpose: that which has fewer rows than columns."""
    return problem.transposed if problem.n < problem.m else problem
