"""Where torch's own kernels are faster than ours: what the cost model says of us, against what was measured of torch.

The figures are from an H200: docs/measured.md. To leave a product to torch takes the host a few microseconds more, so
those that are short are not left: their time is the host's.
"""

from typing import Final

import torch

from tilesmith.plan import Plan
from tilesmith.problem import ALIGNMENT, Matrix, Problem

_CLOCKS_PER_US: Final = 1755.0
_LEAST_US: Final = 20.0  # of torch's, that hide the way to it
_LEAST_US_OF_ADDITIONS: Final = 45.0  # where that is longer: five arguments, two of them by name
_WORTH_IT: Final = 1.05  # of our time, for one of torch's

_FEW: Final = 8  # rows or columns, for which torch has kernels of their own
_NOT_MANY: Final = 128  # for which it reads the other operand no more often than we do
_LONG_K: Final = 512  # from there on the tensor cores decide, and not memory


def torch_is_faster(plan: Plan) -> str | None:
    """Why, if so."""
    problem, capability = plan.problem, plan.device.capability
    if plan.name.startswith("simt"):
        return _torch_has_tensor_cores(plan)
    if capability != (9, 0) or problem.a.dtype not in (torch.float16, torch.bfloat16):
        return None
    found = _torchs_us(plan)
    if found is None:
        return None
    torchs_us, reason = found
    least = _LEAST_US
    if problem.finish is not None:
        least = _LEAST_US_OF_ADDITIONS
        if problem.finish.residual is not None:
            torchs_us += 2.5 + _out_bytes(problem) / 2.1e6  # it copies the addend first
    ours_us = plan.cost.cycles / _CLOCKS_PER_US
    return reason if torchs_us > least and ours_us > _WORTH_IT * torchs_us else None


def _torch_has_tensor_cores(plan: Plan) -> str | None:
    problem, capability = plan.problem, plan.device.capability
    if problem.a.dtype == torch.float32 and problem.accuracy != "tf32":
        return None
    if problem.a.dtype != torch.float16 and capability < (8, 0):
        return None  # before Ampere, tensor cores had float16 alone
    return f"{plan.name} has no tensor cores, and torch has"


def _torchs_us(plan: Plan) -> tuple[float, str] | None:
    """About how long torch takes, where that may be less than we do; and what is hard for us."""
    p = plan.problem
    realigns = any(stage.kernel.entry == "realign" for stage in plan.stages)
    if realigns and min(p.m, p.n) <= _FEW:
        return _input_bytes(p) / 2.0e6, "operands that would have to be realigned, for a few rows or columns"
    if realigns and min(p.m, p.n) <= _NOT_MANY:
        us = max(4.0 + _input_bytes(p) / 1.55e6, p.flops / 180e6)
        return us, "operands that would have to be realigned, for not many rows or columns"
    if not _has_aligned_lines(p.out):
        us = max(8.0 + _out_bytes(p) / 1.05e6, p.flops / 105e6)
        return us, "16-bit results in lines that are not aligned"
    if p.batches > 1 and not realigns and p.k >= _LONG_K:
        return 6.0 + p.flops / 600e6, "matrices of a batch that do not fill our tiles"
    return None


def _has_aligned_lines(out: Matrix) -> bool:
    steps = (stride * out.dtype.itemsize for stride in (out.row_stride, out.column_stride, *out.batch_strides))
    return out.alignment >= ALIGNMENT and all(step % ALIGNMENT == 0 for step in steps if step > out.dtype.itemsize)


def _out_bytes(p: Problem) -> int:
    return p.batches * p.m * p.n * p.out.dtype.itemsize


def _input_bytes(p: Problem) -> int:
    return p.batches * (p.m + p.n) * p.k * p.a.dtype.itemsize
