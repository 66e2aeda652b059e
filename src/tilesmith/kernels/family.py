"""What the rest of the package knows of a kernel family."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tilesmith.core.device import Device
from tilesmith.core.plan import Kernel, KernelLaunch, Plan, Rejection
from tilesmith.core.problem import Problem


class Candidate(NamedTuple):
    """A plan that could be made, and what it would cost."""

    name: str
    cycles: float  # expected clocks of the device
    plan: Callable[[], Plan]


@dataclass(frozen=True, slots=True)
class LaunchWords:
    """A launch as a person reads it."""

    does: str
    stops: str | None = None  # when, and after what; None if it never does before its end
    pipeline_stages: int | None = None  # that loads are ahead of the arithmetic; None if there is no such ring
    terms: tuple[int, int] | None = None  # of its operands, if it multiplies 16-bit terms of float32
    term_products: int | None = None
    registers: tuple[int, int] | None = None  # of a thread that loads and of one that multiplies, where they differ


@dataclass(frozen=True, slots=True)
class SumWords:
    """How a plan sums over K, and what error follows."""

    sums: str  # of K, or of a part of it
    error: str
    values_decide: bool = False  # which arithmetic runs depends on all values


@dataclass(frozen=True, slots=True)
class Family:
    """A family of kernels: what it can do, the plans it offers for that, and how it explains them."""

    name: str
    serves: Callable[[Problem, Device], bool]  # operands of these types, on this GPU, at some sizes
    rejects: Callable[[Problem, Device], str | None]  # why it cannot do this problem; None if it can
    candidates: Callable[[Problem, Device], Iterable[Candidate]]
    exclusions: Callable[[Problem, Device], Iterable[Rejection]]  # configurations that are no candidates, and why
    launch_words: Callable[[KernelLaunch, Plan], LaunchWords]
    sum_words: Callable[[Plan], SumWords]
    kernels: Callable[[Device], Iterable[Kernel]]  # every one that a plan of this family may have on this GPU
    # The cheapest of the candidates, where there is a quicker way to it than to make them all. None if there are none.
    cheapest: Callable[[Problem, Device], Candidate | None] | None = None
    # Clocks that each of the candidates takes at least, told in no time: who cannot be the cheapest is not asked more.
    min_cycles: Callable[[Problem, Device], float] | None = None
    packing: Callable[[Problem, Device], Plan | None] | None = None  # the plan of `tilesmith.pack`
    # The plan for a problem that has the configuration of a plan for another one; None if it cannot have it.
    with_configuration: Callable[[Plan, Problem], Plan | None] | None = None
    # Kernels that together do float32 products of any sizes and strides, for each pair of directions of the operands.
    general_kernels: Callable[[Device], list[Kernel]] | None = None
    is_fallback: bool = False  # for what no other family can do, on the CUDA cores
    leaves_small_to_fallback: bool = False  # which is a choice beside this one


def without_idle_fallbacks(families: list[Family]) -> list[Family]:
    """Those that are in question for what all of these can do."""
    are_enough = any(not family.is_fallback and not family.leaves_small_to_fallback for family in families)
    return [family for family in families if not family.is_fallback] if are_enough else families
