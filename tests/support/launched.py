"""What a launch is compiled and launched with, by the types that its family declares."""

from typing import TypeVar

from tilesmith.core.params import Address, KernelConstants, ParameterBlock, TensorMap
from tilesmith.core.plan import Kernel, KernelLaunch, Plan

Constants = TypeVar("Constants", bound=KernelConstants)
Parameters = TypeVar("Parameters", bound=ParameterBlock)


def constants_of(kernel: Kernel, kind: type[Constants]) -> Constants:
    assert isinstance(kernel.constants, kind)
    return kernel.constants


def parameters_of(launch: KernelLaunch, kind: type[Parameters]) -> Parameters:
    assert isinstance(launch.parameters, kind)
    return launch.parameters


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
