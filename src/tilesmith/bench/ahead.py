"""Kernels compiled before they are needed, several at the same time."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tilesmith.core.plan import Plan
from tilesmith.runtime import cubins

_COMPILERS: Final = 8  # at the same time


def compile_ahead(plans: Iterable[Plan], arch: str) -> None:
    """Compiles the kernels of plans into the cache: a first call would compile its own ones alone."""
    kernels = dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches)
    with ThreadPoolExecutor(_COMPILERS) as pool:
        list(pool.map(lambda kernel: cubins.cubin(kernel, arch), kernels))
