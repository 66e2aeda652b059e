"""The least time that a GPU needs for a product, whoever computes it: peak rates, and what follows from them.

The highest clocks and the bandwidths of known GPUs are in their files, `planner/rates/*.toml`.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from tilesmith.core.device import KNOWN_GPUS, Device
from tilesmith.core.gpu_files import gpu_files

# Multiply-adds of 16-bit floats that one SM's tensor cores finish in a clock, by compute capability.
_TENSOR_RATE: Final[dict[tuple[int, int], int]] = {
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (12, 0): 512,
}
_HALF_PRODUCTS: Final = {"fp32": 3}  # that a product of the class takes at least; the others take one


@dataclass(frozen=True, slots=True)
class Peak:
    """What a GPU can do at most."""

    sm_count: int
    clock_hz: float
    bytes_per_second: float
    l2_bytes: int

    @classmethod
    def known(cls, name: str) -> "Peak":
        """The peak rates of one of `device.KNOWN_GPUS`.

        >>> Peak.known("h200").clock_hz
        1980000000.0
        """
        gpu = KNOWN_GPUS[name]
        facts = next(file.facts for file in gpu_files() if file.key == name)
        return cls(gpu.sm_count, facts.max_clock_hz, facts.memory_bytes_per_second, gpu.l2_bytes)

    @classmethod
    def of_properties(cls, gpu: Any) -> "Peak | None":
        """By what torch calls the properties of a device; None if no clocks are among them."""
        if not gpu.clock_rate or not gpu.memory_clock_rate:
            return None
        return cls(
            sm_count=gpu.multi_processor_count,
            clock_hz=gpu.clock_rate * 1e3,
            bytes_per_second=2 * gpu.memory_clock_rate * 1e3 * gpu.memory_bus_width / 8,
            l2_bytes=gpu.L2_cache_size,
        )

    @classmethod
    def of(cls, gpu: Device) -> "Peak | None":
        """The peak rates of a GPU that is known, or else of one here that has its name; None if it is neither."""
        for name, known in KNOWN_GPUS.items():
            if known == gpu:
                return cls.known(name)
        here = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
        properties = (torch.cuda.get_device_properties(index) for index in here)
        return next((cls.of_properties(each) for each in properties if each.name == gpu.name), None)

    def flops_per_second(self, multiply_adds_per_clock: float) -> float:
        """At a rate of one SM; a multiply-add is two."""
        return 2 * multiply_adds_per_clock * self.sm_count * self.clock_hz


def half_products(precision: str) -> int:
    """The products of 16-bit floats that a product of a precision class takes at least.

    >>> half_products("fp32"), half_products("tf32"), half_products("bf16")
    (3, 1, 1)
    """
    return _HALF_PRODUCTS.get(precision, 1)


def tensor_rate(capability: tuple[int, int], precision: str) -> float | None:
    """Multiply-adds of a precision class that the tensor cores of one SM finish in a clock; None if that is not known.

    >>> tensor_rate((9, 0), "bf16"), tensor_rate((5, 2), "bf16")
    (2048.0, None)
    """
    rate = _TENSOR_RATE.get(capability)
    return None if rate is None else rate / half_products(precision)


@dataclass(frozen=True, slots=True)
class Work:
    """What a product cannot do without."""

    flops: float
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time for some work."""

    compute_seconds: float | None  # all SMs busy at the highest clock; None if their rate is not known
    memory_seconds: float  # everything is read, and what L2 cannot hold of the results is written

    @classmethod
    def of(cls, work: Work, peak: Peak, multiply_adds_per_clock: float | None) -> "Roofline":
        """The rate is that of one SM.

        >>> work = Work(flops=2 * 8192**3, read_bytes=2 * 2 * 8192**2, written_bytes=2 * 8192**2)
        >>> roofline = Roofline.of(work, Peak.known("h200"), tensor_rate((9, 0), "bf16"))
        >>> roofline.bound, f"{roofline.seconds * 1e6:.0f} us"
        ('compute', '1027 us')
        """
        computing = None
        if multiply_adds_per_clock is not None:
            computing = work.flops / peak.flops_per_second(multiply_adds_per_clock)
        moved = work.read_bytes + max(0.0, work.written_bytes - peak.l2_bytes)
        return cls(computing, moved / peak.bytes_per_second)

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds or 0.0, self.memory_seconds)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        return "compute" if (self.compute_seconds or 0.0) > self.memory_seconds else "memory"
