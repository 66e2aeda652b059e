"""The `hopper_tf32` family: float32 operands as TF32, straight from where they lie to the tensor cores.

TMA rounds them as it loads. In bytes, tiles of TF32 are tiles of 16-bit numbers with twice the K, and the tensor cores
take as long for them: so a product is planned as its twin, with 16-bit operands and float32 results, and its kernel is
the twin's but for the instruction and the tensor maps. From shared memory the instruction takes operands along K alone.
One that lies across it is the kernel's A, and goes through registers; its twin's lies along K, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

import torch

from tilesmith.core import rates
from tilesmith.core.device import Device
from tilesmith.core.params import TILE_K, Address, Buffer, TensorMap
from tilesmith.core.plan import Details, Kernel, KernelLaunch, Plan, Rejection
from tilesmith.core.problem import ALIGNMENT, Matrix, Problem
from tilesmith.kernels import operand, realign, turn, words
from tilesmith.kernels.family import Candidate, SumWords
from tilesmith.kernels.hopper import cost as cost_model
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper.assembly import parts_of
from tilesmith.kernels.hopper.constants import GemmConstants
from tilesmith.kernels.hopper.launch import GemmParameters
from tilesmith.kernels.hopper.traits import has_short_sums
from tilesmith.kernels.operand import Operand, round_up

_STAND_IN: Final = torch.float16  # what the twin multiplies
_DEPTH: Final = TILE_K // 2  # of a tile along K, and the rows of an atom of one that lies across it: turned_tile.cuh


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
    if not (_has_lines(problem.a) and _has_lines(problem.b)):
        return "an operand has no contiguous lines"
    return hopper.rejects(problem._replace(k=2 * problem.k), device)


def _has_lines(matrix: Matrix) -> bool:
    return 1 in (matrix.row_stride, matrix.column_stride)


@dataclass(frozen=True, slots=True)
class Tf32Rates:
    """Table `hopper_tf32` of a GPU's rates."""

    clock_factor: float  # of the twin's clocks
    launch_clocks: float  # more: 16-bit products are told without what a timer takes, and all others with it


class _Side:
    """An operand: how it is read, and what stands for it in the twin."""

    def __init__(self, matrix: Matrix, buffer: Buffer, batch: tuple[int, ...]) -> None:
        self.matrix = matrix  # its columns along K
        self.source = Address(buffer)
        self.read = operand.direct(matrix, buffer)
        self.is_across = matrix.column_stride != 1 if self.read is None else self.read.mn_major
        self.is_copied = self.read is None
        self.elements = matrix.rows * matrix.columns * operand.different_matrices(matrix.batch_strides, batch)

    @property
    def twin(self) -> Matrix:
        matrix, alignment, stride = self.matrix, self.matrix.alignment, 2 * self.matrix.row_stride
        if self.is_across:  # any that straddles lines of L2 where this does; what is copied must not be aligned
            straddles = self.read is not None and self.read.straddles
            stride = round_up(2 * matrix.columns, TILE_K) + ALIGNMENT // _STAND_IN.itemsize * straddles
            alignment = _STAND_IN.itemsize if self.is_copied else alignment
        return matrix._replace(
            dtype=_STAND_IN,
            columns=2 * matrix.columns,
            row_stride=stride,
            column_stride=1,
            batch_strides=tuple(2 * each for each in matrix.batch_strides),
            alignment=alignment,
        )


class _Twin:
    """How a product that this family can do is planned. Of operands that both lie across K, the smaller one is copied
    to lines along it."""

    def __init__(self, problem: Problem, device: Device) -> None:
        a, b = _Side(problem.a, "a", problem.batch), _Side(problem.b.transposed, "b", problem.batch)
        if a.is_across and b.is_across and not (a.is_copied or b.is_copied):
            smaller = a if a.elements < b.elements else b
            smaller.is_copied = True
        self.own = problem
        self.problem = problem._replace(k=2 * problem.k, a=a.twin, b=b.twin.transposed)
        across = [each for each in (a, b) if each.is_across]
        self.copied_across: dict[Address | None, Matrix] = {
            each.source: each.matrix for each in across if each.is_copied
        }
        self.turned = next((each for each in across if not each.is_copied), None)  # in registers
        self.must_swap = None if self.turned is None else self.turned is b
        self._rates = rates.section(device, "hopper_tf32", Tf32Rates)
        # Where one launch of the twin copies both, one that turns is another one.
        is_more = a.is_copied and b.is_copied and len(self.copied_across) > 0
        self._more_preparation = cost_model.rates_of(device).common.realign_clocks if is_more else 0.0

    def candidate(self, twin: Candidate) -> Candidate:
        return Candidate(_name(twin.name), self._cycles(twin.cycles), lambda: self._plan(twin.plan()))

    def _cycles(self, of_twin: float) -> float:
        return (of_twin + self._more_preparation) * self._rates.clock_factor + self._rates.launch_clocks

    def _plan(self, twin: Plan) -> Plan:
        return replace(
            twin,
            problem=self.own,
            family="hopper_tf32",
            name=_name(twin.name),
            launches=tuple(each for launch in twin.launches for each in self._launches(launch)),
            cycles=self._cycles(twin.cycles),
            details=partial(self._details, twin),
        )

    def _details(self, twin: Plan) -> Details:
        cost = twin.cost
        preparation = cost.preparation + self._more_preparation
        timer = cost.timer * self._rates.clock_factor - self._rates.launch_clocks
        own = replace(cost, preparation=preparation, scale=self._rates.clock_factor, timer=timer)
        return Details(own, twin.tiling)

    def _launches(self, twin: KernelLaunch) -> Iterator[KernelLaunch]:
        if isinstance(twin.parameters, realign.Parameters):
            copies = dict.fromkeys(twin.parameters.copies)
            if along_k := [copy for copy in copies if copy.source not in self.copied_across]:
                yield realign.launch_of(along_k)
            for copy in copies:
                if matrix := self.copied_across.get(copy.source):
                    assert copy.source is not None and copy.target is not None
                    # It counts in 16-bit numbers.
                    batch_stride = tuple(each // 2 for each in copy.batch_stride)
                    pitch = copy.pitch // 2
                    yield turn.launch(matrix, copy.source, copy.target, pitch, copy.batch_size, batch_stride)
        elif isinstance(twin.parameters, GemmParameters):
            yield self._product(twin, twin.parameters)
        else:
            yield twin

    def _product(self, twin: KernelLaunch, parameters: GemmParameters) -> KernelLaunch:
        assert parameters.a is not None and parameters.b is not None
        read = None if self.turned is None else self.turned.read
        a = _floats(parameters.a) if read is None else _turned(parameters.a, read)
        kernel = _kernel(twin.kernel, turned=read is not None)
        return twin._replace(kernel=kernel, parameters=parameters.changed(a=a, b=_floats(parameters.b)))


def cheapest(problem: Problem, device: Device) -> Candidate | None:
    twin = _Twin(problem, device)
    found = hopper.cheapest(twin.problem, device, twin.must_swap)
    return None if found is None else twin.candidate(found)


def candidates(problem: Problem, device: Device) -> Iterator[Candidate]:
    twin = _Twin(problem, device)
    return (twin.candidate(each) for each in hopper.candidates(twin.problem, device, twin.must_swap))


def exclusions(problem: Problem, device: Device) -> Iterator[Rejection]:
    twin = _Twin(problem, device)
    for each in hopper.exclusions(twin.problem, device, twin.must_swap):
        yield replace(each, candidate=_name(each.candidate))


def _name(of_twin: str) -> str:
    return of_twin.replace("hopper", "hopper_tf32", 1)


def _floats(halves: TensorMap) -> TensorMap:
    """The same memory, which TMA reads as float32."""
    sizes, box = ((each[0] // 2, *each[1:]) for each in (halves.sizes, halves.box))
    return halves._replace(dtype=torch.float32, sizes=sizes, box=box, rounds_to_tf32=True)


def _turned(halves: TensorMap, read: Operand) -> TensorMap:
    """The operand that lies across K, where its twin lies along it."""
    size = torch.float32.itemsize
    line_stride = read.line_stride or round_up(read.length, ALIGNMENT // size)
    return halves._replace(
        dtype=torch.float32,
        sizes=(read.length, read.lines, *halves.sizes[2:]),
        strides=(line_stride * size, *halves.strides[1:]),
        box=(_DEPTH, _DEPTH, *halves.box[2:]),
        rounds_to_tf32=True,
    )


@cache
def _kernel(twin: Kernel, *, turned: bool) -> Kernel:
    assert isinstance(twin.constants, GemmConstants) and twin.wgmma is not None
    c = twin.constants
    constants = replace(c, tf32=True, a_mn_major=turned, short_sums=has_short_sums(c.tile_m, c.tile_n))
    wgmma = replace(twin.wgmma, dtype=torch.float32, a_in_registers=turned)
    return replace(twin, constants=constants, wgmma=wgmma, parts=parts_of(constants))


def kernels(device: Device) -> Iterator[Kernel]:
    """Every kernel that a plan may have."""
    for kernel in hopper.kernels(device):
        c, wgmma = kernel.constants, kernel.wgmma
        if isinstance(c, GemmConstants) and wgmma is not None:
            is_float = wgmma.dtype == _STAND_IN and c.Output == "float"
            if is_float and not c.a_mn_major and not c.b_mn_major:
                yield from (_kernel(kernel, turned=turned) for turned in (False, True))
        elif kernel.entry in ("realign", "split_k_reduce"):
            yield kernel
    if device.capability == (9, 0):
        yield from turn.kernels(torch.float32.itemsize)


def sum_words(plan: Plan) -> SumWords:
    sums = (
        "Sums in float32 on the tensor cores, which cut off what does not fit, of operands rounded to TF32; of small "
        "outputs they are parts of K, which are added with rounding."
    )
    return SumWords(sums, words.error_of_float32(plan))
