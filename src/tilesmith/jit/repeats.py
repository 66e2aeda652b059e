"""Launches that come again with the same buffers: from some time on they are one launch, of a CUDA graph.

A launch takes the host a few microseconds, and a graph of several no longer than one. Programs that repeat a step
mostly find their tensors at the same addresses each time. But to record a graph takes as long as a hundred launches,
and memory of the GPU: so it is done only with what comes often, and as long as there is room.
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from tilesmith.errors import DriverError

_COMES_OFTEN: Final = 16  # times
_MOST_COUNTED: Final = 1024  # of one kind of launches; past that all are counted anew
_MOST_RECORDED: Final = 256  # in all, of 100 KB each
_LONG_UNUSED: Final = 10.0  # seconds, of what may be given up: more than a step of a program takes

Buffers = tuple[int, ...]


class Recorded(Protocol):
    used: bool  # set by who uses it

    def destroy(self) -> None: ...


Recording = TypeVar("Recording", bound=Recorded)


class Repeats(Generic[Recording]):
    """Those of one kind of launches.

    Who uses what was recorded takes it out of the dictionary, which is atomic, and then puts it back: a graph is for
    one thread at a time.
    """

    __slots__ = ("_times", "known", "recorded")

    def __init__(self) -> None:
        self.recorded: dict[Buffers, Recording] = {}
        # Those of all recordings, also of those that are taken out just now; and those that could not be recorded.
        self.known: set[Buffers] = set()
        self._times: dict[Buffers, int] = {}

    def note(self, buffers: Buffers, record: Callable[[Buffers], Recording]) -> None:
        """Counts launches that were not recorded, and records them once they come often."""
        times = self._times.get(buffers, 0) + 1
        if times < _COMES_OFTEN:
            if len(self._times) >= _MOST_COUNTED:
                self._times.clear()
            self._times[buffers] = times
            return
        self._times.pop(buffers, None)
        with _lock:
            if buffers not in self.known and _there_is_room():
                self.known.add(buffers)
                try:
                    self.recorded[buffers] = record(buffers)
                except DriverError:
                    return  # there may be no memory for it, and the launches were made without it
                _all.append((self, buffers))


_lock = threading.Lock()
_all: list[tuple[Repeats[Any], Buffers]] = []
_last_look = monotonic()  # for what is not used


def _there_is_room() -> bool:
    """Once there is none, gives up from time to time what was not used since the last time."""
    global _last_look
    if len(_all) >= _MOST_RECORDED and monotonic() - _last_look >= _LONG_UNUSED:
        _all[:] = [each for each in _all if not _is_given_up(*each)]
        _last_look = monotonic()
    return len(_all) < _MOST_RECORDED


def _is_given_up(repeats: Repeats[Any], buffers: Buffers) -> bool:
    recording = repeats.recorded.pop(buffers, None)
    if recording is None:
        return False  # it is in use just now
    if recording.used:
        recording.used = False
        repeats.recorded[buffers] = recording
        return False
    repeats.known.remove(buffers)
    recording.destroy()
    return True
