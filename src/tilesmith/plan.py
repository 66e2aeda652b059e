"""How a product will be done: a frozen value with everything the compiler and the launch need."""

from dataclasses import dataclass

from tilesmith.device import Device
from tilesmith.problem import Problem

Constant = int | bool | str  # a str is the name of a CUDA type


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is compiled: a source file of the package and every constant that it needs, by name."""

    entry: str  # the name of the __global__ function
    source: str  # relative to the package's cuda folder
    constants: tuple[tuple[str, Constant], ...]
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A way that was considered and not taken."""

    candidate: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch that computes the whole problem."""

    problem: Problem
    device: Device
    name: str  # e.g. "simt 128x256x8"
    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    arguments: bytes  # the kernel's parameter block; it starts with the operands' addresses, zero here
    operands: tuple[str, str, str]  # whose addresses those are: "a", "b" and "out", in the kernel's order
    cycles: float  # what the cost model expects, in clocks of the device
    rejections: tuple[Rejection, ...] = ()

    @property
    def reason(self) -> str:
        return f"{self.name} is expected to take {self.cycles:,.0f} clocks of {self.device.name}, the least of all"

    def describe(self) -> str:
        """The plan as a person reads it."""
        lines = [
            f"{self.problem} on {self.device.name} ({self.device.arch})",
            f"  {self.name}: {self.threads} threads, {self.kernel.shared_bytes} bytes of shared memory",
            f"  grid {' x '.join(map(str, self.grid))}",
            f"  {self.reason}",
            *(f"  not {r.candidate}: {r.reason}" for r in self.rejections),
        ]
        return "\n".join(lines)
