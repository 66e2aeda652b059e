"""What went where, and why: counted where it happens, and read as a table."""

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

import torch

Where = Literal["tilesmith", "torch"]

_MAX_EVENTS: Final = 1024  # of a count that wait to be read
_MAX_KINDS: Final = 16384  # of calls that are counted


@dataclass(frozen=True, slots=True)
class Stat:
    """The calls of one operator with operands of one size and type, all of which went the same way."""

    operator: str  # "mm", "addmm", "bmm" or "baddbmm"
    a: tuple[int, ...]
    b: tuple[int, ...]
    dtype: torch.dtype
    where: Where
    reason: str  # the plan's name, or why it was left to torch
    calls: int
    seconds: float | None  # of all calls together, if they were timed


@dataclass(frozen=True, slots=True)
class Stats:
    """What an override did. Print it for a table."""

    entries: tuple[Stat, ...]  # the most called first, and then by operator and sizes

    def calls(self, where: Where) -> int:
        """How many products went there."""
        return sum(each.calls for each in self.entries if each.where == where)

    def __str__(self) -> str:
        if not self.entries:
            return "no products"
        timed = any(each.seconds is not None for each in self.entries)
        rows = [("operator", "a", "b", "type", "calls", *(("ms",) if timed else ()), "went to", "why")]
        for each in self.entries:
            sizes = ("x".join(map(str, shape)) for shape in (each.a, each.b))
            dtype = str(each.dtype).removeprefix("torch.")
            ms = () if not timed else ("" if each.seconds is None else f"{each.seconds * 1e3:.3f}",)
            rows.append((each.operator, *sizes, dtype, str(each.calls), *ms, each.where, each.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


class CallCount:
    """The count behind a `Stat`, which calls add to."""

    __slots__ = ("_events", "_seconds", "calls")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = 0  # `calls += 1` cannot be interrupted while Python has its lock: no call of it is in between
        self._seconds: float | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @staticmethod
    def start(on_gpu: bool) -> "float | torch.cuda.Event | None":
        """A moment: on a GPU one of the stream; None while a graph is captured, which takes no time."""
        if not on_gpu:
            return perf_counter()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self, started: "float | torch.cuda.Event | None") -> None:
        """Adds the time since then."""
        if isinstance(started, float):
            self._seconds = (self._seconds or 0.0) + perf_counter() - started
        elif started is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((started, event))
            if len(self._events) >= _MAX_EVENTS:
                self.seconds()

    def seconds(self) -> float | None:
        """Waits for the GPU, if there is something to wait for."""
        events, self._events = self._events, []
        for first, last in events:
            last.synchronize()
            self._seconds = (self._seconds or 0.0) + first.elapsed_time(last) * 1e-3
        return self._seconds


Kind = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype, Where, str]  # the first fields of a Stat

_counts: dict[Kind, CallCount] = {}
_lock = threading.Lock()


def call_count(kind: Kind) -> CallCount:
    """The count of calls of this kind. Where there are too many kinds, the half with the fewest calls is forgotten."""
    with _lock:
        if len(_counts) >= _MAX_KINDS and kind not in _counts:
            fewest = sorted(_counts, key=lambda each: _counts[each].calls)[: _MAX_KINDS // 2]
            for each in fewest:
                del _counts[each]
        return _counts.setdefault(kind, CallCount())


def clear() -> None:
    """Counts from zero. The counts stay the same objects: routes hold them."""
    with _lock:
        for each in _counts.values():
            each.clear()


def stats() -> Stats:
    """What went where and why since the outermost `override` was entered, or `enable` called; also after its end.

    >>> import tilesmith
    >>> with tilesmith.emulate(), tilesmith.override(min_flops=1000):
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 2)
    >>> print(tilesmith.stats())
    operator  a    b    type     calls  went to  why
    mm        2x3  3x2  float32  1      torch    fewer than min_flops
    """
    with _lock:
        counted = [(kind, each) for kind, each in _counts.items() if each.calls]
    entries = [Stat(*kind, calls=each.calls, seconds=each.seconds()) for kind, each in counted]
    entries.sort(key=lambda each: (-each.calls, each.operator, each.a, each.b, str(each.dtype), each.where))
    return Stats(tuple(entries))
