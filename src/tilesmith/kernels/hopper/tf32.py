"""The `hopper_tf32` family: float32 operands as TF32, straight from where they lie to the tensor cores.

TMA rounds them as it loads. In bytes, tiles of TF32 are tiles of 16-bit numbers with twice the K, and the tensor cores
take as long for them: so a product is planned as its twin, with 16-bit operands and float32 results, and its kernel is
the twin's but for the instruction and the tensor maps. The instruction takes operands along K alone.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import TensorMap
from tilesmith.core.plan import Kernel, KernelLaunch, Plan, Rejection
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels import operand, words
from tilesmith.kernels.family import Candidate, SumWords
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper.constants import GemmConstants
from tilesmith.kernels.hopper.launch import GemmParameters

_STAND_IN = torch.float16  # what the twin multiplies


def serves(problem: Problem, device: Device) -> bool:
    return _rejects_type(problem, device) is None


def _rejects_type(problem: Problem, device: Device) -> str | None:
    if device.capability != (9, 0):
        return f"needs compute capability 9.0, and {device.name} has {'.'.join(map(str, device.capability))}"
    if problem.accuracy != "tf32" or (problem.a.dtype, problem.b.dtype) != (torch.float32, torch.float32):
        return "multiplies float32 as TF32, and nothing else"
    return None


def rejects(problem: Problem, device: Device) -> str | None:
    """Why this family cannot do the problem."""
    if reason := _rejects_type(problem, device):
        return reason
    if problem.a.packed or problem.b.packed:
        return "an operand is packed, as terms"
    if problem.k == 0 or problem.is_empty:
        return "there is nothing to multiply"
    if not (_is_line(problem.a) and _is_line(problem.b.transposed)):
        return "reads operands along K, where lines start at multiples of 16 bytes"
    return hopper.rejects(_twin(problem), device)


def _is_line(matrix: Matrix) -> bool:
    """Whether TMA reads its rows as they lie."""
    found = operand.direct(matrix, "a")
    return found is not None and not found.mn_major


def _twin(problem: Problem) -> Problem:
    """The product of the same bytes as 16-bit numbers."""
    a, b = _halves(problem.a), _halves(problem.b.transposed)
    return problem._replace(k=2 * problem.k, a=a, b=b.transposed)


def _halves(lines: Matrix) -> Matrix:
    return lines._replace(
        dtype=_STAND_IN,
        columns=2 * lines.columns,
        row_stride=2 * lines.row_stride,
        column_stride=1,
        batch_strides=tuple(2 * stride for stride in lines.batch_strides),
    )


def cheapest(problem: Problem, device: Device) -> Candidate | None:
    found = hopper.cheapest(_twin(problem), device)
    return None if found is None else _own(problem, found)


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    return (_own(problem, each) for each in hopper.candidates(_twin(problem), device))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    for each in hopper.exclusions(_twin(problem), device):
        yield replace(each, candidate=_name(each.candidate))


def _name(of_twin: str) -> str:
    return of_twin.replace("hopper", "hopper_tf32", 1)


def _own(problem: Problem, twin: Candidate) -> Candidate:
    return Candidate(_name(twin.name), twin.cycles, lambda: _plan(problem, twin.plan()))


def _plan(problem: Problem, twin: Plan) -> Plan:
    launches = tuple(_launch(each) if each.multiplies else each for each in twin.launches)
    return replace(twin, problem=problem, family="hopper_tf32", name=_name(twin.name), launches=launches)


def _launch(twin: KernelLaunch) -> KernelLaunch:
    assert isinstance(twin.parameters, GemmParameters)
    a, b = twin.parameters.a, twin.parameters.b
    assert a is not None and b is not None
    parameters = twin.parameters.changed(a=_floats(a), b=_floats(b))
    return twin._replace(kernel=_kernel(twin.kernel), parameters=parameters)


def _floats(halves: TensorMap) -> TensorMap:
    """The same memory, which TMA reads as float32."""
    sizes, box = ((each[0] // 2, *each[1:]) for each in (halves.sizes, halves.box))
    return halves._replace(dtype=torch.float32, sizes=sizes, box=box, rounds_to_tf32=True)


def _kernel(twin: Kernel) -> Kernel:
    assert isinstance(twin.constants, GemmConstants) and twin.wgmma is not None
    return replace(twin, constants=replace(twin.constants, tf32=True), wgmma=replace(twin.wgmma, dtype=torch.float32))


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    for kernel in hopper.kernels(device):
        c, wgmma = kernel.constants, kernel.wgmma
        if isinstance(c, GemmConstants) and wgmma is not None:
            is_float = wgmma.dtype == _STAND_IN and c.Output == "float"
            yield from () if not is_float or c.a_mn_major or c.b_mn_major else (_kernel(kernel),)
        elif kernel.entry == "split_k_reduce":
            yield kernel


def sum_words(plan: Plan) -> SumWords:
    sums = "One sum in float32 on the tensor cores, which cut off what does not fit, of operands rounded to TF32."
    return SumWords(sums, words.error_of_float32(plan))
