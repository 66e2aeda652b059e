"""Work that several threads do at the same time: what lets Python go on meanwhile, as compilers do."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def at_once(make: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """What `make` makes of each, on as many threads as this process has cores.

    >>> at_once(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    todo = list(items)
    if len(todo) < 2:
        return [make(each) for each in todo]
    with ThreadPoolExecutor(min(len(todo), cores())) as pool:
        return list(pool.map(make, todo))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
