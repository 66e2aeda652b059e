"""The kernel families: what each can do, and the plans it offers."""

from typing import Final

from tilesmith.core.plan import Plan
from tilesmith.kernels import fp64, hopper, simt
from tilesmith.kernels.family import Family

FAMILIES: Final[tuple[Family, ...]] = (*hopper.FAMILIES, *fp64.FAMILIES, *simt.FAMILIES)


def family_of(plan: Plan) -> Family:
    """The family that made a plan."""
    return next(family for family in FAMILIES if family.name == plan.family)
