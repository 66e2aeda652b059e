"""What a launch is compiled and launched with, by the types that its family declares."""

import itertools
from dataclasses import dataclass, replace
from typing import TypeVar

from tilesmith.core.device import Device, named
from tilesmith.core.params import Address, KernelConstants, ParameterBlock, TensorMap
from tilesmith.core.plan import Kernel, KernelLaunch, Plan
from tilesmith.kernels.fp32_split import launch as fp32_split

# What plans are made for: an H200 and an H100, and others like them.
DEVICES: dict[str, Device] = {
    **{name: named(name) for name in ("h200", "h100")},
    "78 SMs": replace(named("h200"), sm_count=78),
    "7 SMs": replace(named("h200"), sm_count=7),  # fewer blocks than there may be K chunks
    "100 KB": replace(named("h200"), shared_bytes_per_block=100 * 1000),
    "78 SMs and 100 KB": replace(named("h200"), sm_count=78, shared_bytes_per_block=100 * 1000),
}

Constants = TypeVar("Constants", bound=KernelConstants)
Parameters = TypeVar("Parameters", bound=ParameterBlock)


def constants_of(kernel: Kernel, kind: type[Constants]) -> Constants:
    assert isinstance(kernel.constants, kind)
    return kernel.constants


def parameters_of(launch: KernelLaunch, kind: type[Parameters]) -> Parameters:
    assert isinstance(launch.parameters, kind)
    return launch.parameters


def kinds_of(split: KernelLaunch) -> list[fp32_split.KindConstants]:
    """That of each operand which a launch splits."""
    c, p = constants_of(split.kernel, fp32_split.Constants), parameters_of(split, fp32_split.Parameters)
    return [c.a, c.b][: p.count]


def addresses_of(launch: KernelLaunch) -> list[Address]:
    """In the order of the parameters."""
    return [address for _, address in launch.parameters.addresses()]


def maps_of(launch: KernelLaunch) -> list[TensorMap]:
    """In the order of the parameters."""
    return [tensor_map for _, tensor_map in launch.parameters.tensor_maps()]


def places_of(launch: KernelLaunch) -> list[Address | TensorMap]:
    """All that a launch reads or writes."""
    return [*addresses_of(launch), *maps_of(launch)]


def entries(plan: Plan) -> list[str]:
    """The kernels of a plan, by name."""
    return [launch.kernel.entry for launch in plan.launches]


def is_swapped(plan: Plan) -> bool:
    """Whether it computes the transposed product."""
    return "swap_ab" in plan.name


@dataclass(frozen=True)
class Region:
    """Bytes of the workspace."""

    first: int
    end: int
    name: str = ""

    @classmethod
    def of_map(cls, tensor_map: TensorMap) -> "Region":
        assert tensor_map.buffer == "workspace"
        strides = (tensor_map.dtype.itemsize, *tensor_map.strides)
        reach = sum((size - 1) * stride for size, stride in zip(tensor_map.sizes, strides, strict=True))
        return cls(tensor_map.offset, tensor_map.offset + reach + tensor_map.dtype.itemsize)

    def holds(self, other: "Region") -> bool:
        return self.first <= other.first and other.end <= self.end


def assert_apart(regions: list[Region], workspace_bytes: int) -> None:
    """They begin at multiples of 256, from 0 on, and end within the workspace."""
    regions = sorted(regions, key=lambda region: region.first)
    assert all(region.first % 256 == 0 for region in regions)
    for before, after in itertools.pairwise(regions):
        assert before.end <= after.first, (before, after)
    assert regions[0].first == 0
    assert regions[-1].end <= workspace_bytes


def assert_the_driver_takes(tensor_map: TensorMap) -> None:
    assert 2 <= len(tensor_map.sizes) == len(tensor_map.box) == len(tensor_map.strides) + 1 <= 5
    assert all(1 <= size <= 2**32 for size in tensor_map.sizes)
    assert all(0 < stride < 2**40 and stride % 16 == 0 for stride in tensor_map.strides)
    assert all(1 <= size <= 256 for size in tensor_map.box)
    assert tensor_map.line_bytes in (16, 32, 64, 128)
    assert tensor_map.box[0] * tensor_map.dtype.itemsize == tensor_map.line_bytes
    assert tensor_map.offset % 16 == 0
