"""Work that several threads do at the same time: what lets Python go on meanwhile, as compilers do."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

_CGROUP: Final = Path("/sys/fs/cgroup")

Item = TypeVar("Item")
Made = TypeVar("Made")


def at_once(make: Callable[[Item], Made], items: Iterable[Item], most: int | None = None) -> list[Made]:
    """What `make` makes of each, on so many threads at most: as many as this process has cores, if nothing is said.

    >>> at_once(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    todo = list(items)
    if len(todo) < 2:
        return [make(each) for each in todo]
    with ThreadPoolExecutor(min(len(todo), most or cores())) as pool:
        return list(pool.map(make, todo))


@cache
def cores(cgroup: Path = _CGROUP) -> int:
    """The cores that this process may use: those that it may run on, but no more than a container has the time of."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """The cores whose time a container has, as its control group says, of either version; None if there is no limit."""
    try:
        whole, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            whole, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        quota = int(whole) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return quota if quota > 0 else None
