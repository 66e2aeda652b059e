"""How the launch that splits float32 operands explains itself."""

from tilesmith.core.numbers import count, listed
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels.family import LaunchWords
from tilesmith.kernels.fp32_split.launch import Constants
from tilesmith.kernels.fp32_split.terms import SCHEMES, Scheme
from tilesmith.kernels.words import sources

RETURNS_IF_OUT_OF_RANGE = "if the range statistics find values that these terms cannot hold"
RETURNS_IF_IN_RANGE = "unless the range check finds values that float16 terms cannot hold"


def scheme_of(plan: Plan, *, full_range: bool) -> Scheme:
    schemes = SCHEMES[plan.problem.accuracy]
    return schemes.full_range if full_range else schemes.ordinary


def dtype_of(scheme: Scheme) -> str:
    return str(scheme.dtype).removeprefix("torch.")


def describe(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    c = launch.kernel.constants
    assert isinstance(c, Constants)
    scheme, operands = scheme_of(plan, full_range=c.full_range), sources(launch)
    terms = [count(each.terms, f"{dtype_of(scheme)} term") for each, _ in zip((c.a, c.b), operands, strict=False)]
    ending = (
        ", which hold float32's whole range"
        if scheme.full_range
        else ", scaled, and finds the range statistics of their values"
    )
    if c.a_is_rs:
        own, split = operands
        does = f"splits {split} into {terms[1]}{ending}; finds scales for {own}, which the product splits itself"
    elif len(operands) == 2 and terms[0] == terms[1]:
        does = f"splits both operands into {terms[0]} each{ending}"
    else:
        does = f"splits {listed([f'{x} into {own}' for x, own in zip(operands, terms, strict=True)])}{ending}"
    return LaunchWords(does, returns_at_once=RETURNS_IF_IN_RANGE if c.full_range else None)
