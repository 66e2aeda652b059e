"""Where torch's own kernels are faster than ours: what the cost model says of us, against what was measured of torch.

The figures are data, table `torch` of the GPU's file in `planner/rates`. To leave a product to torch takes the host a
few microseconds more, so those that are short are not left: their time is the host's.
"""

from dataclasses import dataclass

import torch

from tilesmith.core import rates
from tilesmith.core.plan import Plan
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels import family_of
from tilesmith.kernels.operand import aligned_lines


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """A time that grows with the bytes that are copied."""

    us: float
    bytes_per_us: float


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """The time of a product that only reads its operands."""

    bytes_per_us: float


@dataclass(frozen=True, slots=True)
class MovingTimes:
    """The time of a product that moves bytes, or else computes."""

    us: float  # before the first byte
    bytes_per_us: float
    flops_per_us: float

    def of(self, moved_bytes: int, flops: float) -> float:
        return max(self.us + moved_bytes / self.bytes_per_us, flops / self.flops_per_us)


@dataclass(frozen=True, slots=True)
class ComputingTimes:
    """The time of a product that computes."""

    us: float
    flops_per_us: float


@dataclass(frozen=True, slots=True)
class TorchTimes:
    """Table `torch` of a GPU's rates: how long torch takes, where that may be less than we do."""

    min_us: float  # of torch's, that hide the way to it
    min_addition_us: float  # where that is longer: five arguments, two of them by name
    worth_factor: float  # of our time, for one of torch's
    max_few: int  # rows or columns, for which torch has kernels of their own
    max_narrow: int  # for which it reads the other operand no more often than we do
    min_batched_k: int  # from there on the tensor cores decide, and not memory
    residual: CopyTimes  # it copies the addend first
    realigned_few: ReadTimes
    realigned_narrow: MovingTimes
    unaligned_results: MovingTimes
    batched: ComputingTimes


def torch_is_faster(plan: Plan) -> str | None:
    """Why torch is faster, where it is."""
    problem = plan.problem
    if family_of(plan).is_fallback or plan.device.capability != (9, 0):
        return _torch_has_tensor_cores(plan)
    if problem.a.dtype not in (torch.float16, torch.bfloat16):
        return None
    times = rates.section(plan.device, "torch", TorchTimes)
    found = _torchs_us(plan, times)
    if found is None:
        return None
    torchs_us, reason = found
    min_us = times.min_us
    if problem.epilogue is not None:
        min_us = times.min_addition_us
        if problem.epilogue.residual is not None:
            torchs_us += times.residual.us + _out_bytes(problem) / times.residual.bytes_per_us
    ours_us = plan.cycles / rates.section(plan.device, "clocks", rates.Clocks).per_us
    return reason if torchs_us > min_us and ours_us > times.worth_factor * torchs_us else None


def _torch_has_tensor_cores(plan: Plan) -> str | None:
    """And its kernels were made on this GPU, where ours have none or were not measured."""
    problem, capability = plan.problem, plan.device.capability
    if problem.a.dtype == torch.float32 and problem.accuracy != "tf32":
        return None
    if problem.a.dtype != torch.float16 and capability < (8, 0):
        return None  # before Ampere, tensor cores had float16 alone
    if not family_of(plan).is_fallback:
        return f"{plan.name} was not measured on {plan.device.name}"
    return f"{plan.name} has no tensor cores, and torch has"


def _torchs_us(plan: Plan, times: TorchTimes) -> tuple[float, str] | None:
    """About how long torch takes, where that may be less than we do; and what is hard for us."""
    p = plan.problem
    has_odd_lines = not all(aligned_lines(each) or aligned_lines(each.transposed) for each in (p.a, p.b))
    if has_odd_lines and min(p.m, p.n) <= times.max_few:
        us = _input_bytes(p) / times.realigned_few.bytes_per_us
        return us, "operands in lines that are not aligned, for a few rows or columns"
    if has_odd_lines and min(p.m, p.n) <= times.max_narrow:
        us = times.realigned_narrow.of(_input_bytes(p), p.flops)
        return us, "operands in lines that are not aligned, for not many rows or columns"
    if not _has_aligned_lines(p.out):
        us = times.unaligned_results.of(_out_bytes(p), p.flops)
        return us, "16-bit results in lines that are not aligned"
    if p.batches > 1 and not has_odd_lines and p.k >= times.min_batched_k:
        us = times.batched.us + p.flops / times.batched.flops_per_us
        return us, "matrices of a batch that do not fill our tiles"
    return None


def _has_aligned_lines(out: Matrix) -> bool:
    steps = (stride * out.dtype.itemsize for stride in (out.row_stride, out.column_stride, *out.batch_strides))
    return out.alignment >= ALIGNMENT and all(step % ALIGNMENT == 0 for step in steps if step > out.dtype.itemsize)


def _out_bytes(p: Problem) -> int:
    return p.batches * p.m * p.n * p.out.dtype.itemsize


def _input_bytes(p: Problem) -> int:
    return p.batches * (p.m + p.n) * p.k * p.a.dtype.itemsize
