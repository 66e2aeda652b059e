"""Launches that come again with the same buffers: from some time on they are one launch, of a CUDA graph.

A launch takes the host a few microseconds, and a graph of several no longer than one. Programs that repeat a step
mostly find their tensors at the same addresses each time. But to record a graph takes as long as a hundred launches,
and memory of the GPU: so it is done only with what comes often, and as long as there is room.
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from tilesmith.core.errors import DriverError
from tilesmith.core.recent import Recent

_MIN_LAUNCHES: Final = 16  # with the same buffers, before a graph is worth it
_PAUSE: Final = 100_000  # launches, before another attempt to record what could not be
_COUNTED_BUFFERS: Final = 512  # of one plan: the last that were used, and up to twice as many
_MAX_GRAPHS: Final = 256  # in all, of 100 KB each
_MIN_UNUSED_SECONDS: Final = 10.0  # of a graph that may be given up: more than a step of a program takes

Buffers = tuple[int, ...]


class Graph(Protocol):
    used: bool  # set by who uses it

    def destroy(self) -> None: ...


AnyGraph = TypeVar("AnyGraph", bound=Graph)


class GraphReplay(Generic[AnyGraph]):
    """The graphs of one plan, by the buffers that they launch with.

    Who uses a graph takes it out of the dictionary, which is atomic, and then puts it back: it is for one thread at a
    time.
    """

    __slots__ = ("__weakref__", "_first", "_first_times", "_times", "graphs", "known")

    def __init__(self) -> None:
        self.graphs: dict[Buffers, AnyGraph] = {}
        self.known: frozenset[Buffers] = frozenset()  # of all graphs, also of those that are taken out just now
        # Most plans only ever see a few buffers: the table of them is made when there are second ones.
        self._first: Buffers = ()
        self._first_times = 0
        self._times: Recent[Buffers, int] | None = None

    def note(self, buffers: Buffers, record: Callable[[Buffers], AnyGraph]) -> None:
        """Counts launches that were made one by one, and records them as a graph once they come often."""
        if self._times is None and buffers == self._first:
            self._first_times = times = self._first_times + 1
        else:
            times = self._count(buffers)
        if times < _MIN_LAUNCHES:
            return
        self._count_from(0, buffers)
        with _lock:
            if buffers not in self.known and _there_is_room():
                try:
                    graph = record(buffers)
                except DriverError:
                    # There may be no memory for it, and the launches were made without it.
                    self._count_from(-_PAUSE, buffers)
                    return
                self.known |= {buffers}
                self.graphs[buffers] = graph
                _all.append((ref(self), buffers))

    def _count(self, buffers: Buffers) -> int:
        """How often they came, this time included."""
        if self._times is None:
            if not self._first:
                self._first, self._first_times = buffers, 1
                return 1
            self._times = Recent(_COUNTED_BUFFERS)
            self._times[self._first] = self._first_times
        counted = self._times.young
        times = counted.get(buffers)
        if times is None:
            times = self._times.get(buffers) or 0
            self._times[buffers] = times
        counted[buffers] = times + 1
        return times + 1

    def _count_from(self, times: int, buffers: Buffers) -> None:
        if self._times is None:
            self._first_times = times
        elif times:
            self._times[buffers] = times
        else:
            self._times.pop(buffers)


_lock = threading.Lock()
_all: list[tuple[ref[GraphReplay[Any]], Buffers]] = []  # those of a plan that is forgotten go with it
_last_look = monotonic()  # for what is not used


def _there_is_room() -> bool:
    """Whether one more graph may be kept. Where there is no room, those are given up from time to time that were not
    used since the last time."""
    global _last_look
    if len(_all) >= _MAX_GRAPHS and monotonic() - _last_look >= _MIN_UNUSED_SECONDS:
        _all[:] = [each for each in _all if not _is_given_up(*each)]
        _last_look = monotonic()
    return len(_all) < _MAX_GRAPHS


def _is_given_up(of_plan: ref[GraphReplay[Any]], buffers: Buffers) -> bool:
    replay = of_plan()
    if replay is None:
        return True  # the plan is gone, and its graphs with it
    graph = replay.graphs.pop(buffers, None)
    if graph is None:
        return False  # it is in use just now
    if graph.used:
        graph.used = False
        replay.graphs[buffers] = graph
        return False
    replay.known -= {buffers}
    graph.destroy()
    return True
