"""Kernels compiled before they are needed, several at the same time."""

from collections.abc import Iterable

from tilesmith.core.plan import Plan
from tilesmith.core.threads import at_once
from tilesmith.runtime import cubins


def compile_ahead(plans: Iterable[Plan], arch: str) -> None:
    """Compiles the kernels of plans into the cache: a first call would compile its own ones alone."""
    kernels = dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches)
    at_once(lambda kernel: cubins.cubin(kernel, arch), kernels)
