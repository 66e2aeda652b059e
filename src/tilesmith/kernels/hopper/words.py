"""How hopper's plans explain themselves."""

import torch

from tilesmith.core.numbers import count
from tilesmith.core.params import TILE_K
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import words
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.fp32_split.launch import Constants as SplitConstants
from tilesmith.kernels.fp32_split.terms import SCHEMES, term_products
from tilesmith.kernels.fp32_split.words import RETURNS_IF_IN_RANGE, STOPS_IF_OUT_OF_RANGE, dtype_of, scheme_of
from tilesmith.kernels.fp32_split.words import describe as split_words
from tilesmith.kernels.hopper.constants import CommonConstants, GemmConstants, RsConstants, Runs, TermConstants
from tilesmith.kernels.hopper.launch import Fp32Parameters, GemmParameters


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    match launch.kernel.constants:
        case CommonConstants() as c:
            return _product_words(c, launch, plan)
        case SplitConstants():
            return split_words(launch, plan)
        case _:
            return words.describe(launch, plan)


def _product_words(c: CommonConstants, launch: KernelLaunch, plan: Plan) -> LaunchWords:
    does = f"multiplies on the tensor cores: tiles of {c.tile_m} x {c.tile_n}"
    terms = products = stops = None
    if isinstance(c, RsConstants):
        terms = (c.a_terms, c.b_terms) if isinstance(c, TermConstants) else (c.terms, c.terms)
        products = term_products(*terms) + c.with_least_product  # short sums keep the least one, too
        dtype = dtype_of(scheme_of(plan, full_range=c.runs is Runs.IF_OUT_OF_RANGE))
        does += f", {count(products, 'product')} of {terms[0]} by {terms[1]} {dtype} terms"
        if not isinstance(c, TermConstants):
            does += ", one operand split in registers on the way"
        stops = {Runs.IF_IN_RANGE: STOPS_IF_OUT_OF_RANGE, Runs.IF_OUT_OF_RANGE: RETURNS_IF_IN_RANGE}.get(c.runs)
    if isinstance(c, GemmConstants) and c.tf32 and c.a_mn_major:
        does += ", one operand through registers"
    if c.stationary_b:
        does += "; a block keeps its columns of the second operand"
    assert isinstance(launch.parameters, GemmParameters | Fp32Parameters)
    if launch.parameters.out_is_partial:
        does += words.LEAVES_PARTIALS
    return LaunchWords(
        does,
        stops=stops,
        pipeline_stages=c.stages,
        terms=terms,
        term_products=products,
        registers=(c.producer_registers, c.consumer_registers),
    )


def _has_terms(plan: Plan) -> bool:
    return torch.float32 in (plan.problem.a.dtype, plan.problem.b.dtype)


def sum_words(plan: Plan) -> SumWords:
    problem = plan.problem
    if not _has_terms(plan):
        return words.sums_of_halves(plan)
    if SCHEMES[problem.accuracy].ordinary.terms > 1 and problem.k > TILE_K:
        sums = f"The tensor cores sum {TILE_K} of K at a time; these sums are added in float32, with rounding."
    else:
        sums = "One sum in float32 on the tensor cores, which cut off what does not fit."
    return SumWords(sums, words.error_of_float32(plan), values_decide=True)
