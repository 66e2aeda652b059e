"""How the plans explain themselves that multiply float32 in doubles."""

from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import words
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.fp64 import gemv, skinny


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    partials = words.LEAVES_PARTIALS if plan.split_k > 1 else ""
    match launch.kernel.constants:
        case skinny.Constants() as c:
            does = "multiplies doubles on the tensor cores, and reads the larger operand once"
            return LaunchWords(does + partials, pipeline_stages=c.stages)
        case gemv.Constants():
            return LaunchWords("multiplies each line by the vector, in doubles" + partials)
        case _:
            return words.describe(launch, plan)


def sum_words(plan: Plan) -> SumWords:
    return words.SUMS_OF_DOUBLES
