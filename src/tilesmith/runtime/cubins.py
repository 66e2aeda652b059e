"""The compiled code of a kernel, wherever it comes from."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tilesmith.core.plan import Kernel
from tilesmith.runtime import archive, cache, source

Item = TypeVar("Item")
Made = TypeVar("Made")


def cubin(kernel: Kernel, arch: str) -> bytes:
    """The cubin of a kernel: from an archive, or from the cache on disk, or compiled."""
    found = archive.find(kernel, arch)
    return cache.cubin(source.render(kernel), arch) if found is None else found


def at_once(make: Callable[[Item], Made], items: Iterable[Item]) -> Sequence[Made]:
    """What `make` makes of each, on as many threads as this process has cores: NVRTC lets Python go on meanwhile."""
    todo = list(items)
    if len(todo) < 2:
        return [make(each) for each in todo]
    with ThreadPoolExecutor(min(len(todo), cores())) as pool:
        return list(pool.map(make, todo))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
