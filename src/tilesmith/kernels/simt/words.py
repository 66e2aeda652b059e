"""How simt's plans explain themselves."""

import torch

from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels.family import LaunchWords, SumWords
from tilesmith.kernels.simt.launch import Constants


def launch_words(launch: KernelLaunch, plan: Plan) -> LaunchWords:
    c = launch.kernel.constants
    assert isinstance(c, Constants)
    tile = f"tiles of {c.tile_m} x {c.tile_n}, {c.tile_k} of K at a time"
    return LaunchWords(f"multiplies on the CUDA cores: {tile}")


def sum_words(plan: Plan) -> SumWords:
    problem, out = plan.problem, str(plan.problem.out.dtype).removeprefix("torch.")
    dtype = problem.a.dtype
    if not dtype.is_floating_point:
        bits = 64 if dtype == torch.int64 else 32
        return SumWords(f"One chain of {bits}-bit integers.", f"None: exact, with the wrap-around of {out}.")
    if dtype == torch.float64:
        sums, error = (
            "One chain of float64 multiply-adds, in the order of K.",
            "That of one chain of float64 roundings.",
        )
        return SumWords(sums, error)
    sums = "One chain of float32 multiply-adds, in the order of K."
    if dtype != torch.float32:
        rounded = "" if problem.out.dtype == torch.float32 else f", and of one rounding to {out}"
        return SumWords(sums, f"That of sums in float32{rounded}.")
    error = "That of one chain of float32 roundings"
    if problem.accuracy == "fp32":
        error += ": up to twice that of torch's product where torch splits its sums"
    return SumWords(sums, f"{error}.")
