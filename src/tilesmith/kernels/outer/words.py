"""How the plans of outer.cu explain themselves."""

from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels.family import LaunchWords, SumWords


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    return LaunchWords("multiplies on the CUDA cores, with all of K in shared memory")


def sum_words(plan: Plan) -> SumWords:
    return SumWords(
        "One chain of float32 multiply-adds, in the order of K.",
        "That of one chain of float32 roundings, as of torch's product.",
    )
