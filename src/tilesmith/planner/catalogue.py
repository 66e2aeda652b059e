"""The kernels that plans for a GPU may use."""

from collections.abc import Iterable

from tilesmith.core.device import Device
from tilesmith.core.plan import Kernel


def kernels(device: Device) -> Iterable[Kernel]:
    """The kernels that plans for a GPU may use."""
    return []
