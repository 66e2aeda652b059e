"""The kernel families: what each can do, and the plans it offers."""

from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.plan import Kernel, Plan
from tilesmith.kernels import fp64, hopper, mma, outer, simt
from tilesmith.kernels.family import Family

FAMILIES: Final[tuple[Family, ...]] = (
    *hopper.FAMILIES,
    *fp64.FAMILIES,
    *mma.FAMILIES,
    *outer.FAMILIES,
    *simt.FAMILIES,
)


def family_of(plan: Plan) -> Family:
    """The family that made a plan."""
    return next(family for family in FAMILIES if family.name == plan.family)


def catalogue(device: Device) -> list[Kernel]:
    """Every kernel that any plan may have on this GPU."""
    return list(dict.fromkeys(kernel for family in FAMILIES for kernel in family.kernels(device)))
