"""How a product will be done: a frozen value with everything the compiler and the launches need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import KernelConstants, ParameterBlock
from tilesmith.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Wgmma:
    """The tensor-core instruction of a kernel: 64 x n x 16, or of float32 as TF32 64 x n x 8."""

    n: int
    dtype: torch.dtype
    a_mn_major: bool  # the operand lies along M (or N) in shared memory, not along K
    b_mn_major: bool
    a_in_registers: bool = False


@dataclass(frozen=True)
class Kernel:
    """What is compiled: a source file of the package, and everything that it needs to know."""

    entry: str  # the name of the __global__ function
    source: str  # relative to the package
    constants: KernelConstants
    parameters: str  # the C++ struct of its parameters
    headers: tuple[str, ...]  # that declare what the struct is made of
    threads: int
    shared_bytes: int
    wgmma: Wgmma | None = None
    parts: tuple[str, ...] = ()  # files that define what the source only names, one for each of its choices

    @classmethod
    def of(
        cls,
        entry: str,
        source: str,
        constants: KernelConstants,
        parameters: ParameterBlock,
        *,
        threads: int,
        shared_bytes: int = 0,
        wgmma: Wgmma | None = None,
        parts: tuple[str, ...] = (),
    ) -> "Kernel":
        """The kernel that takes parameters like these."""
        return cls(entry, source, constants, *parameters.declared(), threads, shared_bytes, wgmma, parts)

    @property
    def tile(self) -> str:
        """The tile of a block, as "128x192"; "" if it has none."""
        sizes = (getattr(self.constants, name, None) for name in ("tile_m", "tile_n", "tile_k"))
        return "x".join(str(size) for size in sizes if size is not None)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """It has many constants, and is looked up for each new plan."""
        own = self.entry, self.constants, self.parameters, self.threads, self.shared_bytes, self.wgmma, self.parts
        return hash(own)


class KernelLaunch(NamedTuple):
    """One launch of a kernel."""

    kernel: Kernel
    parameters: ParameterBlock
    grid: tuple[int, int, int]
    cluster: int = 1  # blocks that run together and share memory
    awaits_predecessor: bool = False  # the kernel itself waits for the end of what comes before it in the stream
    multiplies: bool = False  # it makes the product itself, and not what comes before or after


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that a plan is expected to take, by what it is spent on, in the clocks of the timings it was fitted to.

    >>> Cost(product=900.0, reduction=100.0, scale=1.5).cycles
    1500.0
    """

    product: float  # with its launch
    preparation: float = 0.0  # operands are copied, or split into terms
    idle_launches: float = 0.0  # of a scheme that as a rule has nothing to do
    reduction: float = 0.0  # the parts of K are added
    scale: float = 1.0  # clocks of the device, for one of the timings'
    timer: float = 0.0  # clocks that the timings had of their own, all of them in `product`

    @property
    def cycles(self) -> float:
        """All parts together, in clocks of the device."""
        return (self.product + self.preparation + self.idle_launches + self.reduction) * self.scale - self.timer

    @property
    def cycles_by_part(self) -> dict[str, float]:
        """The clocks of each part, in the order in which they run."""
        return {
            "preparation": self.preparation * self.scale,
            "product": self.product * self.scale - self.timer,
            "idle launches": self.idle_launches * self.scale,
            "reduction": self.reduction * self.scale,
        }


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the blocks of the launch that multiplies share the output, and how the threads of a block share its tile."""

    rows: int  # of a tile
    columns: int
    workers: str  # who has a share of the tile: warpgroups or warps
    worker_rows: int  # of a worker's share
    worker_columns: int
    units: int  # tiles of all matrices and all parts of K, those included that only fill a cluster
    units_at_once: int  # that the GPU has room for
    parts_of_k: int = 1  # that blocks of their own sum
    worker_sets: int = 1  # that have the same shares, and divide K
    loaders: int = 0  # more warpgroups, which only load
    swap_ab: bool = False  # it is the transposed output that is cut


@dataclass(frozen=True, slots=True)
class Details:
    """What of a plan nobody needs who runs it."""

    cost: Cost  # what the cost model expects
    tiling: Tiling | None  # of the product; None if the plan only prepares an operand


@dataclass(frozen=True, slots=True)
class Rejection:
    """A way that was considered and not taken."""

    candidate: str
    reason: str
    cycles: float | None = None  # expected clocks of the device, if it came to a comparison


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches that compute the whole problem, one after the other."""

    problem: Problem
    device: Device
    family: str  # of kernels
    name: str  # the family and the configuration, e.g. "simt 128x256x8"
    launches: tuple[KernelLaunch, ...]
    cycles: float  # what the cost model expects, in clocks of the device
    details: Callable[[], Details] = field(compare=False)  # made when somebody asks
    workspace_bytes: int = 0
    is_tuned: bool = False  # chosen because it was measured to be the fastest, and not by what it is expected to take
    split_k: int = 1  # parts of K that are summed apart; with one, a row of a 16-bit product does not depend on others

    @property
    def product(self) -> KernelLaunch:
        """The first launch that multiplies."""
        return next(launch for launch in self.launches if launch.multiplies)

    @property
    def cost(self) -> Cost:
        return self.details().cost

    @property
    def tiling(self) -> Tiling | None:
        return self.details().tiling
