"""Integers of 8 bits, which a warp multiplies in its registers by mma_large.cu: pairs of neighbours along K are moved
as the elements of 16 bits are.

Operands whose aligned lines run along K are read as they lie. Others are copied so by a launch before; an odd K ends
with a zero then. Sums are int32, exact but for their wrap-around, also of parts of K.
"""

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, Address
from tilesmith.core.plan import Cost, Kernel, KernelLaunch, Plan, Rejection
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels import output, split_k_reduce, turn
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.cost import Costs, Rates, min_cycles_of, rates_of
from tilesmith.kernels.mma.family import (
    LEAST_CAPABILITY,
    fits_a_grid,
    is_countable,
    operand_bytes,
    planned,
    sources_of,
)
from tilesmith.kernels.mma.launch import Arithmetic
from tilesmith.kernels.mma.operands import Lines, Placed, walked
from tilesmith.kernels.mma.tiles import TILES_OF_PAIRS, Cut
from tilesmith.kernels.operand import WORKSPACE_ALIGNMENT, moving_batch, packed_batch_strides, round_up

NAME: Final = "int8_mma"
_SUMS: Final = torch.int32
_OUTPUTS: Final = {dtype: (_SUMS, dtype) for dtype in (torch.int8, torch.uint8)}  # by the type of the operands
_PAIRS: Final = torch.int16  # as a type of elements


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if device.capability < LEAST_CAPABILITY:
        return "is for compute capability 8.0 and later"
    dtype = problem.a.dtype
    if problem.b.dtype != dtype or problem.out.dtype not in _OUTPUTS.get(dtype, ()):
        return "is for operands of int8 or uint8, and outputs of their type or int32"
    return None


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if len(problem.batch) > MAX_BATCH_DIMS:
        return f"walks {MAX_BATCH_DIMS} batch dimensions at most, and this product has {len(problem.batch)}"
    p, largest = problem.stored_by_rows, TILES_OF_PAIRS[0]
    if not is_countable(p) or not fits_a_grid(largest, p.m, p.n, p.batches):
        return "its sizes or strides cannot be counted with 32 bits"
    return None


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    """A plan for every tile, with K whole and in parts."""
    return (_candidate(problem, device, *each) for each in _costs(problem, device))


def cheapest(problem: Problem, device: Device) -> Candidate:
    """The one that is expected to take the least time."""
    return _candidate(problem, device, *min(_costs(problem, device), key=itemgetter(1)))


def min_cycles(problem: Problem, device: Device) -> float:
    return min_cycles_of(_in_pairs(problem), device, _rates(device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    """No tile is left out of what the family can do."""
    return iter(())


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    if device.capability >= LEAST_CAPABILITY:
        for dtype, outputs in _OUTPUTS.items():
            for out in outputs:
                yield from launch.kernels(Arithmetic(dtype, _SUMS, out), TILES_OF_PAIRS)
        yield from turn.kernels(torch.int8.itemsize)
        yield from split_k_reduce.kernels()


def _costs(problem: Problem, device: Device) -> Iterator[tuple[Cut, float]]:
    p = problem.stored_by_rows
    costs = _costs_of(p, device)
    suited = (tile for tile in TILES_OF_PAIRS if fits_a_grid(tile, p.m, p.n, p.batches))
    return ((cut, costs.of(cut).cycles) for tile in suited for cut in costs.cuts(tile))


def _costs_of(p: Problem, device: Device) -> Costs:
    copied = [each for each in (p.a, p.b.transposed) if not _is_read_directly(each)]
    turning = sum(turn.clocks(each, operand_bytes(each, p), device) for each in copied)
    beside = Cost(product=0.0, preparation=turning)
    return Costs(_in_pairs(p), device, _rates(device), beside)


def _rates(device: Device) -> Rates:
    return rates_of(device, "mma.int8", halves=1)


def _candidate(problem: Problem, device: Device, cut: Cut, cycles: float) -> Candidate:
    return Candidate(f"{NAME} {cut}", cycles, partial(plan, problem, device, cut))


def plan(problem: Problem, device: Device, cut: Cut) -> Plan:
    """The plan that uses this tile, and these parts of K."""
    p, split_k = problem.stored_by_rows, cut.split_k
    partials = output.partial(p.out, split_k * p.batches, 0, _SUMS) if split_k > 1 else None
    end = 0 if partials is None else round_up(partials.bytes, WORKSPACE_ALIGNMENT)
    placed, launches = list[Placed](), list[KernelLaunch]()
    for matrix, source in zip((p.a, p.b.transposed), sources_of(problem), strict=True):
        if _is_read_directly(matrix):
            placed.append(Placed.direct(_of_pairs(matrix), source, Lines.of(matrix)))
            continue
        pitch = round_up(p.k, ALIGNMENT)
        own, batch = walked(matrix), p.batch[::-1]
        batch_strides, total = packed_batch_strides(own, batch, matrix.rows * pitch)
        copy = Matrix(matrix.dtype, matrix.rows, pitch, pitch, 1, batch_strides[::-1], ALIGNMENT)
        target = Address("workspace", end)
        placed.append(Placed.direct(_of_pairs(copy), "workspace", Lines.of(copy))._replace(address=target))
        end = round_up(end + total, WORKSPACE_ALIGNMENT)
        launches.append(turn.launch(own, Address(source), target, pitch, *moving_batch(own, batch)))
    arithmetic = Arithmetic(p.a.dtype, _SUMS, p.out.dtype)
    launches.append(launch.launch(_in_pairs(p), arithmetic, cut, (placed[0], placed[1]), partials))
    if partials is not None:
        launches.append(split_k_reduce.launch(p, partials, split_k))
    return planned(problem, device, NAME, cut, launches, end, _costs_of(p, device).of(cut))


def _is_read_directly(matrix: Matrix) -> bool:
    """Where it lies. The matrix's columns run along K, of which there are pairs."""
    lines = Lines.of(matrix)
    return lines.along_k and lines.is_aligned and matrix.columns % 2 == 0


def _in_pairs(problem: Problem) -> Problem:
    """The problem whose elements are pairs, the last one perhaps with a zero."""
    a, b = _of_pairs(problem.a), _of_pairs(problem.b.transposed).transposed
    return problem._replace(k=a.columns, a=a, b=b)


def _of_pairs(matrix: Matrix) -> Matrix:
    """What a kernel reads. The strides are those of lines along K."""
    return matrix._replace(
        dtype=_PAIRS,
        columns=round_up(matrix.columns, 2) // 2,
        row_stride=matrix.row_stride // 2,
        batch_strides=tuple([stride // 2 for stride in matrix.batch_strides]),
    )
