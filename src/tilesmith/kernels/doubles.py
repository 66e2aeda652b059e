"""What the families share that multiply float32 in doubles: `exact`, `thin` and `dot`."""

import torch

from tilesmith.device import Device
from tilesmith.problem import Problem


def rejects(problem: Problem, device: Device) -> str | None:
    """Why none of them can do the problem."""
    if device.capability != (9, 0):
        return "its products of doubles are fast on compute capability 9.0"
    if {problem.a.dtype, problem.b.dtype} != {torch.float32} or problem.accuracy == "ieee":
        return "is for float32, and does not sum in one chain"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    return None


def rejects_single(problem: Problem, device: Device) -> str | None:
    """The same for those that do one product, and count its sizes with 32 bits."""
    if reason := rejects(problem, device):
        return reason
    if problem.batch:
        return "does single products"
    if max(problem.m, problem.n, problem.k) > 2**31 - 2**16:
        return "its sizes cannot be counted with 32 bits"
    return None


def few_as_rows(problem: Problem) -> Problem:
    """The product, or its transpose: that which has fewer rows than columns."""
    return problem.transposed if problem.n < problem.m else problem
