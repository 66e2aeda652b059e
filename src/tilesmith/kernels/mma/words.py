"""How the plans of mma.cu explain themselves."""

from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import words
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.mma.launch import Constants


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    c = launch.kernel.constants
    if not isinstance(c, Constants):
        return words.describe(launch, plan)
    what = "16-bit values" if c.Element != "float" else "doubles" if c.Sum == "double" else "float32 as TF32"
    does = f"multiplies {what} on the tensor cores: tiles of {c.tile_m} x {c.tile_n}, {c.tile_k} of K at a time"
    partials = words.LEAVES_PARTIALS if plan.split_k > 1 else ""
    return LaunchWords(does + partials, pipeline_stages=c.stages)


def sum_words_of_doubles(plan: Plan) -> SumWords:
    return words.SUMS_OF_DOUBLES


def sum_words_of_tf32(plan: Plan) -> SumWords:
    sums = "Operands are rounded to TF32. The tensor cores add a tile along K, and these sums are added in float32."
    return SumWords(sums, words.error_of_float32(plan))
