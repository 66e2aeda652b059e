"""How the launches explain themselves that come before and after a product, whatever family makes it."""

import torch

from tilesmith.core.numbers import listed
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import realign, split_k_reduce, turn
from tilesmith.kernels.family import LaunchWords, SumWords

SUMS_OF_DOUBLES = SumWords(
    "Products are exact, and sums are of doubles, rounded to float32 once.",
    "As small as float32 can have it: one rounding.",
)
LEAVES_PARTIALS = "; leaves the sums of each part of K in the workspace"


def sources(launch: KernelLaunch) -> list[str]:
    """The operands that a launch reads where the caller has them, in its order."""
    buffers = dict.fromkeys(each.buffer for _, each in launch.parameters.addresses())
    return [buffer.upper() for buffer in buffers if buffer in ("a", "b")]


def describe(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    """What such a launch does."""
    match launch.kernel.constants:
        case realign.Constants():
            lines = "lines that start at multiples of 16 bytes, as TMA needs"
            return LaunchWords(f"copies {listed(sources(launch))} to {lines}")
        case turn.Constants():
            return LaunchWords(f"copies {listed(sources(launch))} to lines along K, as the tensor cores need")
        case split_k_reduce.Constants():
            output = f"the {str(plan.problem.out.dtype).removeprefix('torch.')} output"
            if plan.split_k == 1:
                return LaunchWords(f"stores the sums in {output}, which has no contiguous lines")
            return LaunchWords(f"adds the {plan.split_k} parts of K in their order into {output}")
        case unknown:
            raise TypeError(f"{type(unknown).__name__} are no constants of a launch around a product")


def sums_of_halves(plan: Plan) -> SumWords:
    """The sums of 16-bit operands on the tensor cores."""
    out = plan.problem.out.dtype
    rounded = "" if out == torch.float32 else f", and of one rounding to {str(out).removeprefix('torch.')}"
    return SumWords("One sum in float32 on the tensor cores, in the order of K.", f"That of sums in float32{rounded}.")


def error_of_float32(plan: Plan) -> str:
    """The error of float32 that is summed in no single chain."""
    if plan.problem.accuracy == "tf32":
        return "No larger than that of torch's TF32 product (docs/accuracy.md has the limits)."
    return (
        "No larger than that of torch's float32 product, in norm and in the worst element, down to 3e-7 and 1e-6 "
        "(docs/accuracy.md has the limits)."
    )
