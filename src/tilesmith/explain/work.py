"""What a product cannot do without, and the least time for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tilesmith.core import roofline
from tilesmith.core.device import Device
from tilesmith.core.numbers import count, microseconds, paragraph, quantity
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Matrix, Problem
from tilesmith.core.roofline import Peak


@dataclass(frozen=True, slots=True)
class Bounds:
    """The roofline, in microseconds, and the rates that it comes from."""

    means: str | None  # how a product of that class would run the fastest; None if its rate is not known
    flops_per_second: float | None
    bytes_per_second: float
    compute_us: float | None
    memory_us: float
    least_us: float
    bound: str | None  # "compute" or "memory"; None if the rate of either is not known


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic and traffic of a product, whoever computes it."""

    precision: str  # how exact the result is to be: the accuracy of float32, or else the type: "fp32", "bf16", "int8"
    stored: str  # how operands and result lie in memory
    flops: int
    read_bytes: int
    written_bytes: int
    flops_per_byte: float
    bounds: Bounds | None  # None if the GPU's peak rates are not known

    @classmethod
    def of(cls, plan: Plan, peak: Peak | None) -> "Work":
        problem = plan.problem
        added = () if problem.epilogue is None else (problem.epilogue.bias, problem.epilogue.residual)
        read = sum(_distinct_bytes(x, problem.batch) for x in (problem.a, problem.b, *added) if x is not None)
        written = _distinct_bytes(problem.out, problem.batch)
        precision = _precision(problem)
        return cls(
            precision=precision,
            stored=_stored(problem),
            flops=problem.flops,
            read_bytes=read,
            written_bytes=written,
            flops_per_byte=problem.flops / max(read + written, 1),
            bounds=None
            if peak is None
            else _bounds(plan.device, precision, peak, roofline.Work(problem.flops, read, written)),
        )

    def lines(self) -> Iterator[str]:
        yield from paragraph(self.stored)
        moved = quantity(self.read_bytes + self.written_bytes, "B")
        yield f"  {quantity(self.flops, 'FLOP')}, {self.flops_per_byte:,.1f} for each byte that must be moved: {moved},"
        yield f"  {quantity(self.read_bytes, 'B')} read and {quantity(self.written_bytes, 'B')} written"
        bounds = self.bounds
        if bounds is None:
            yield "  no roofline: the peak rates of this GPU are not known"
            return
        by = f"bound by {bounds.bound}" if bounds.bound else "by memory alone"
        yield f"  roofline of {self.precision}: {microseconds(bounds.least_us)}, {by}"
        if bounds.compute_us is None or bounds.flops_per_second is None:
            yield f"    compute  the peak rate of {self.precision} is not known"
        else:
            rate = quantity(bounds.flops_per_second, "FLOP/s")
            yield f"    compute {microseconds(bounds.compute_us):>11}, {rate}: {bounds.means}"
        rate = quantity(bounds.bytes_per_second, "B/s")
        yield f"    memory  {microseconds(bounds.memory_us):>11}, {rate}; what L2 can hold of the result is free"


def _bounds(device: Device, precision: str, peak: Peak, work: roofline.Work) -> Bounds:
    means, rate = _fastest_means(device, precision)
    found = roofline.Roofline.of(work, peak, rate)
    return Bounds(
        means=means,
        flops_per_second=None if rate is None else peak.flops_per_second(rate),
        bytes_per_second=peak.bytes_per_second,
        compute_us=None if found.compute_seconds is None else 1e6 * found.compute_seconds,
        memory_us=1e6 * found.memory_seconds,
        least_us=1e6 * found.seconds,
        bound=None if rate is None else found.bound,
    )


def _precision(problem: Problem) -> str:
    dtype = problem.a.dtype
    if torch.float32 in (dtype, problem.b.dtype):
        return problem.accuracy
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))


def _fastest_means(device: Device, precision: str) -> tuple[str | None, float | None]:
    """In words, and the multiply-adds of one SM in a clock."""
    if precision == "ieee":
        return "the CUDA cores", float(device.multiply_adds_per_clock)
    if precision not in ("fp32", "tf32", "fp16", "bf16"):
        return None, None
    products = count(roofline.half_products(precision), "product")
    return f"{products} of 16-bit floats", roofline.tensor_rate(device.capability, precision)


def _stored(problem: Problem) -> str:
    matrices = (("A", problem.a), ("B", problem.b), ("the output", problem.out))
    return ", ".join(f"{name} {_order(matrix)}" for name, matrix in matrices)


def _order(matrix: Matrix) -> str:
    packed = ", packed" if matrix.packed else ""
    if matrix.columns == 1 or matrix.column_stride == 1:
        return f"by rows{packed}"
    if matrix.rows == 1 or matrix.row_stride == 1:
        return f"by columns{packed}"
    return f"with strides of {matrix.row_stride} and {matrix.column_stride}{packed}"


def _distinct_bytes(matrix: Matrix, batch: tuple[int, ...]) -> int:
    """What is repeated by a stride of 0 lies in memory once."""
    sizes = (matrix.rows, matrix.columns, *batch[: len(matrix.batch_strides)])
    strides = (matrix.row_stride, matrix.column_stride, *matrix.batch_strides)
    moving = (size for size, stride in zip(sizes, strides, strict=True) if stride or size == 0)
    return math.prod(moving) * matrix.dtype.itemsize
