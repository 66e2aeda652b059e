"""How a product will be done: a frozen value with everything the compiler and the launches need."""

from dataclasses import dataclass
from typing import Literal

import torch

from tilesmith.device import Device
from tilesmith.problem import Problem

Constant = int | bool | str  # a str is the name of a CUDA type
# The memory that a launch reads or writes; "a_packed" and "b_packed" are what tilesmith.pack made of an operand.
Buffer = Literal["a", "b", "out", "workspace", "a_packed", "b_packed"]


@dataclass(frozen=True, slots=True)
class Wgmma:
    """The tensor-core instruction of a kernel: 64 x n x 16."""

    n: int
    dtype: torch.dtype
    a_mn_major: bool  # the operand lies along M (or N) in shared memory, not along K
    b_mn_major: bool
    a_in_registers: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is compiled: a source file of the package and every constant that it needs, by name."""

    entry: str  # the name of the __global__ function
    source: str  # relative to the package's cuda folder
    constants: tuple[tuple[str, Constant], ...]
    shared_bytes: int
    wgmma: Wgmma | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Eight bytes of a launch's arguments that hold an address."""

    position: int
    buffer: Buffer
    offset: int = 0  # bytes into the buffer


@dataclass(frozen=True, slots=True)
class TensorMap:
    """128 bytes of a launch's arguments that describe a tensor to the copy engine."""

    position: int
    buffer: Buffer
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]  # the contiguous dimension first
    strides: tuple[int, ...]  # bytes, from the second dimension on
    box: tuple[int, ...]
    line_bytes: int  # the width of the swizzle; 16 for none


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    arguments: bytes  # the kernel's parameter block; zero where addresses and tensor maps go
    addresses: tuple[Address, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    cluster: int = 1  # blocks that run together and share memory
    awaits_predecessor: bool = False  # the kernel itself waits for the end of what comes before it in the stream


@dataclass(frozen=True, slots=True)
class Rejection:
    """A way that was considered and not taken."""

    candidate: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches that compute the whole problem, one after the other."""

    problem: Problem
    device: Device
    name: str  # e.g. "simt 128x256x8"
    stages: tuple[Stage, ...]
    cycles: float  # what the cost model expects, in clocks of the device
    workspace_bytes: int = 0
    is_tuned: bool = False  # chosen because it was measured to be the fastest, and not by what it is expected to take
    splits: int = 1  # parts of K that are summed apart; with one, a row of a 16-bit product does not depend on others
    rejections: tuple[Rejection, ...] = ()

    @property
    def product(self) -> Stage:
        """The stage that multiplies: its kernel has the name of the family."""
        family = self.name.partition(" ")[0]
        return next(stage for stage in self.stages if stage.kernel.entry == family)

    @property
    def reason(self) -> str:
        if self.is_tuned:
            return f"{self.name} was measured to be the fastest on {self.device.name}"
        return f"{self.name} is expected to take {self.cycles:,.0f} clocks of {self.device.name}, the least of all"

    def describe(self) -> str:
        """The plan as a person reads it."""
        lines = [f"{self.problem} on {self.device.name} ({self.device.arch})", f"  {self.reason}"]
        for stage in self.stages:
            grid = " x ".join(map(str, stage.grid))
            cluster = f" in clusters of {stage.cluster}" if stage.cluster > 1 else ""
            lines.append(
                f"  {stage.kernel.entry}: grid {grid}{cluster}, {stage.threads} threads, "
                f"{stage.kernel.shared_bytes} bytes of shared memory"
            )
        if self.workspace_bytes:
            lines.append(f"  workspace: {self.workspace_bytes} bytes")
        lines += (f"  not {r.candidate}: {r.reason}" for r in self.rejections)
        return "\n".join(lines)
