"""How the plans explain themselves that multiply float32 in doubles."""

from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import words
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.fp64 import fp64_mma, gemv, skinny


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    partials = words.LEAVES_PARTIALS if plan.split_k > 1 else ""
    match launch.kernel.constants:
        case fp64_mma.Constants() as c:
            tile = f"tiles of {c.tile_m} x {c.tile_n}, {c.tile_k} of K at a time"
            return LaunchWords(f"multiplies doubles on the tensor cores: {tile}", pipeline_stages=c.stages)
        case skinny.Constants() as c:
            does = "multiplies doubles on the tensor cores, and reads the larger operand once"
            return LaunchWords(does + partials, pipeline_stages=c.stages)
        case gemv.Constants():
            return LaunchWords("multiplies each line by the vector, in doubles" + partials)
        case _:
            return words.describe(launch, plan)


def sum_words(plan: Plan) -> SumWords:
    sums = "Products are exact, and sums are of doubles, rounded to float32 once."
    if plan.split_k == 1:
        return SumWords(sums, "As small as float32 can have it: one rounding.")
    return SumWords(sums, words.error_of_float32(plan))
