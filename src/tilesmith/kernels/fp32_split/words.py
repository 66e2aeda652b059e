"""How the launch that splits float32 operands explains itself."""

from tilesmith.core.numbers import count, listed
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels.family import LaunchWords
from tilesmith.kernels.fp32_split.launch import Constants, Parameters
from tilesmith.kernels.fp32_split.terms import SCHEMES, Scheme

STOPS_IF_OUT_OF_RANGE = "stops after its first tiles if the range statistics find values that these terms cannot hold"
RETURNS_IF_IN_RANGE = "returns at once unless the range check finds values that float16 terms cannot hold"


def scheme_of(plan: Plan, *, full_range: bool) -> Scheme:
    schemes = SCHEMES[plan.problem.accuracy]
    return schemes.full_range if full_range else schemes.ordinary


def dtype_of(scheme: Scheme) -> str:
    return str(scheme.dtype).removeprefix("torch.")


def describe(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    c, p = launch.kernel.constants, launch.parameters
    assert isinstance(c, Constants) and isinstance(p, Parameters)
    scheme, own = scheme_of(plan, full_range=c.full_range), p.operands[: p.count]
    operands = [each.source.buffer.upper() for each in own if each.source is not None]
    terms = [count(kind.terms, f"{dtype_of(scheme)} term") for kind in (c.a, c.b)[: p.count]]
    ending = (
        ", which hold float32's whole range"
        if scheme.full_range
        else ", scaled, and finds the range statistics of their values"
    )
    if c.a_is_rs:
        a, split = operands
        does = f"splits {split} into {terms[1]}{ending}; finds scales for {a}, which the product splits itself"
    elif len(operands) == 2 and terms[0] == terms[1]:
        does = f"splits both operands into {terms[0]} each{ending}"
    else:
        does = f"splits {listed([f'{x} into {those}' for x, those in zip(operands, terms, strict=True)])}{ending}"
    return LaunchWords(does, stops=RETURNS_IF_IN_RANGE if c.full_range else None)
