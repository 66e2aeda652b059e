"""How a drawn product would be planned: by the same calls as on a GPU, of tensors without memory."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import torch
from drawn_cases import RELATED, Case, drawn

from tilesmith.core.accuracy import numerics
from tilesmith.core.device import Device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem
from tilesmith.override import routes
from tilesmith.override.cutover import torch_is_faster
from tilesmith.planner import packing
from tilesmith.runtime.executor import planned

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans of a case: one or two that pack operands, and the one that multiplies."""

    plan: Plan
    packs: tuple[Plan | None, Plan | None]

    @property
    def kernels(self) -> list[Kernel]:
        """All that is compiled for it."""
        plans = [plan for plan in (*self.packs, self.plan) if plan is not None and not plan.problem.is_empty]
        return [launch.kernel for plan in plans for launch in plan.launches]

    @property
    def family(self) -> str:
        """The kernel that multiplies, and the launches around it: "gemm_fp32 split_k", "gemm realign"."""
        if self.plan.problem.is_empty:
            return "nothing"
        entries = {launch.kernel.entry for launch in self.plan.launches}
        more = [name for name in ("realign",) if name in entries] + ["split_k"] * (self.plan.split_k > 1)
        return " ".join([self.plan.product.kernel.entry, *more])

    @property
    def goes_by_override(self) -> bool:
        """Whether an override would take it: it leaves to torch what that is faster at."""
        return torch_is_faster(self.plan) is None


def plans_of(case: Case, gpu: Device) -> Planned:
    a, b = case.a.meta, case.b.meta
    epilogue = epilogue_of(case, *(None if x is None else x.meta for x in (case.bias, case.residual)))
    resolved = numerics(case.accuracy, a.dtype)
    packs = _packing(case, gpu)
    has_terms = [torch.empty(0, device="meta") if plan is not None else None for plan in packs]
    pair = None if packs == (None, None) else (has_terms[0], has_terms[1])
    out = None if case.out is None else case.out.meta
    plan = planned(a, b, gpu, resolved, case.out_dtype, out, pair, epilogue)
    if plan is None:
        plan = planned(a.float(), b.float(), gpu, resolved, case.out_dtype, out, pair, epilogue)
        assert plan is not None
    return Planned(plan, packs)


def covering(seed: int, count: int, gpu: Device) -> list[tuple[Case, Planned]]:
    """So many of the drawn cases, as evenly as there are over families, and within a family over accuracies, types and
    epilogues."""
    kinds: dict[str, dict[tuple[object, ...], list[tuple[Case, Planned]]]] = {}
    for index in range(0, 12 * RELATED * count, RELATED):
        case = drawn(seed, index)
        planned = plans_of(case, gpu)
        if not planned.plan.problem.is_empty:
            adds = case.bias is not None, case.residual is not None, case.scale != 1, any(case.packed)
            kind = (case.resolved, case.types, case.activation, *adds)
            kinds.setdefault(planned.family, {}).setdefault(kind, []).append((case, planned))
    families = [_in_turn(list(of_family.values())) for of_family in kinds.values()]
    return _in_turn(families)[:count]


def _in_turn(lists: list[list[Item]]) -> list[Item]:
    """The first of each, the second of each, and so on.

    >>> _in_turn([[1, 2, 3], [4]])
    [1, 4, 2, 3]
    """
    rows = zip_longest(*lists)
    return [item for row in rows for item in row if item is not None]


def _packing(case: Case, gpu: Device) -> tuple[Plan | None, Plan | None]:
    """As `tilesmith.pack` does: it knows neither the other operand nor more than the accuracy."""
    found: list[Plan | None] = []
    for tensor, is_first, is_packed in ((case.a.meta, True, case.packed[0]), (case.b.meta, False, case.packed[1])):
        if not is_packed or tensor.dtype != torch.float32:
            found.append(None)
            continue
        other = tensor.new_empty((case.k, 1) if is_first else (1, case.k))
        pair = (tensor, other) if is_first else (other, tensor)
        accuracy = numerics(case.accuracy).accuracy
        found.append(packing(Problem.of(*pair, accuracy=accuracy, packed=(is_first, not is_first)), gpu))
    return found[0], found[1]


def epilogue_of(case: Case, bias: torch.Tensor | None, residual: torch.Tensor | None) -> Epilogue | None:
    """What the kernels do to the product; None if nothing."""
    if case.call in ("addmm", "override"):
        added = residual if bias is None else bias
        return None if added is None else routes.epilogue_of((added, case.residual_scale, case.scale))
    if bias is None and residual is None and case.activation is None:
        return None
    return Epilogue(bias, case.activation, residual)
