"""How the plans of this folder explain themselves."""

from typing import Final

from tilesmith.core.numbers import count
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import words
from tilesmith.kernels.element import PAIR_TYPES
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.fp32_split.launch import Constants as SplitConstants
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.fp32_split.terms import SCHEMES, term_products
from tilesmith.kernels.fp32_split.words import RETURNS_IF_IN_RANGE, STOPS_IF_OUT_OF_RANGE, dtype_of, scheme_of
from tilesmith.kernels.fp32_split.words import describe as split_words
from tilesmith.kernels.mma import fp32_launch, launch

_FACTORS: Final = {  # by the types of elements and sums
    ("double", "double"): "doubles",
    ("float", "double"): "doubles",
    ("float", "float"): "float32 as TF32",
    **{(pair, "int"): "8-bit integers" for pair in PAIR_TYPES.values()},
}


def launch_words(launch_: KernelLaunch, plan: Plan) -> LaunchWords:
    match launch_.kernel.constants:
        case fp32_launch.Constants() as c:
            return _words_of_terms(c, plan)
        case launch.Constants() as c:
            what = _FACTORS.get((c.Element, c.Sum), "16-bit values")
            return LaunchWords(_multiplies(what, c, plan), pipeline_stages=c.stages)
        case SplitConstants():
            return split_words(launch_, plan)
        case _:
            return words.describe(launch_, plan)


def _words_of_terms(c: fp32_launch.Constants, plan: Plan) -> LaunchWords:
    is_full_range = c.scale is Scale.EXPONENTS
    products = term_products(c.terms, c.terms) + c.with_least_product
    dtype = dtype_of(scheme_of(plan, full_range=is_full_range))
    terms = f"{count(products, 'product')} of {c.terms} by {c.terms} {dtype} terms"
    return LaunchWords(
        _multiplies(terms, c, plan),
        stops=RETURNS_IF_IN_RANGE if is_full_range else STOPS_IF_OUT_OF_RANGE,
        pipeline_stages=c.stages,
        terms=(c.terms, c.terms),
        term_products=products,
    )


def _multiplies(what: str, c: launch.Constants, plan: Plan) -> str:
    depth = c.tile_k * (2 if c.Element in PAIR_TYPES.values() else 1)
    does = f"multiplies {what} on the tensor cores: tiles of {c.tile_m} x {c.tile_n}, {depth} of K at a time"
    return does + (words.LEAVES_PARTIALS if plan.split_k > 1 else "")


def sum_words_of_doubles(plan: Plan) -> SumWords:
    return words.SUMS_OF_DOUBLES


def sum_words_of_float64(plan: Plan) -> SumWords:
    return SumWords("One sum of float64 on the tensor cores.", "That of sums in float64.")


def sum_words_of_integers(plan: Plan) -> SumWords:
    out = str(plan.problem.out.dtype).removeprefix("torch.")
    return SumWords("One sum of 32-bit integers on the tensor cores.", f"None: exact, with the wrap-around of {out}.")


def sum_words_of_tf32(plan: Plan) -> SumWords:
    sums = "Operands are rounded to TF32. The tensor cores add a tile along K, and these sums are added in float32."
    return SumWords(sums, words.error_of_float32(plan))


def sum_words_of_terms(plan: Plan) -> SumWords:
    scheme = SCHEMES[plan.problem.accuracy].ordinary
    sums = "One sum in float32 on the tensor cores, which cut off what does not fit."
    if scheme.terms > 1:
        sum_k = fp32_launch.sum_k(scheme, plan.device)
        sums = f"The tensor cores sum {sum_k} of K at a time; these sums are added in float32, with rounding."
    return SumWords(sums, words.error_of_float32(plan), values_decide=True)
