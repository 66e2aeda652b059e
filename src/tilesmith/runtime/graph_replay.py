"""Launches that come again with the same buffers: from some time on they are one launch, of a CUDA graph.

A launch takes the host a few microseconds, and a graph of several no longer than one. Programs that repeat a step
mostly find their tensors at the same addresses each time. But to record a graph takes as long as a hundred launches,
and memory of the GPU: so it is done only with what comes often, and as long as there is room.
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from tilesmith.core.errors import DriverError

_MIN_LAUNCHES: Final = 16  # with the same buffers, before a graph is worth it
_MAX_COUNTED_BUFFERS: Final = 1024  # of one plan; past that all are counted anew
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

    __slots__ = ("_times", "graphs", "known")

    def __init__(self) -> None:
        self.graphs: dict[Buffers, AnyGraph] = {}
        # The buffers of all graphs, also of those that are taken out just now; and those that could not be recorded.
        self.known: set[Buffers] = set()
        self._times: dict[Buffers, int] = {}

    def note(self, buffers: Buffers, record: Callable[[Buffers], AnyGraph]) -> None:
        """Counts launches that were made one by one, and records them as a graph once they come often."""
        times = self._times.get(buffers, 0) + 1
        if times < _MIN_LAUNCHES:
            if len(self._times) >= _MAX_COUNTED_BUFFERS:
                self._times.clear()
            self._times[buffers] = times
            return
        self._times.pop(buffers, None)
        with _lock:
            if buffers not in self.known and _there_is_room():
                self.known.add(buffers)
                try:
                    self.graphs[buffers] = record(buffers)
                except DriverError:
                    return  # there may be no memory for it, and the launches were made without it
                _all.append((self, buffers))


_lock = threading.Lock()
_all: list[tuple[GraphReplay[Any], Buffers]] = []
_last_look = monotonic()  # for what is not used


def _there_is_room() -> bool:
    """Whether one more graph may be kept. Where there is no room, those are given up from time to time that were not
    used since the last time."""
    global _last_look
    if len(_all) >= _MAX_GRAPHS and monotonic() - _last_look >= _MIN_UNUSED_SECONDS:
        _all[:] = [each for each in _all if not _is_given_up(*each)]
        _last_look = monotonic()
    return len(_all) < _MAX_GRAPHS


def _is_given_up(replay: GraphReplay[Any], buffers: Buffers) -> bool:
    graph = replay.graphs.pop(buffers, None)
    if graph is None:
        return False  # it is in use just now
    if graph.used:
        graph.used = False
        replay.graphs[buffers] = graph
        return False
    replay.known.remove(buffers)
    graph.destroy()
    return True
