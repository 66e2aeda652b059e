"""Entries that one number may stand for: of one suite, one type and one kind of values, against one opponent."""

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tilesmith.bench.distributions import DISTRIBUTIONS
from tilesmith.bench.results import Change, Entry, opponents

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sort:
    """What kind of product an entry is: its type and how exact it is, its values, and how it was timed."""

    kind: str
    values: str = ""  # a distribution, unless they are normal
    clock: str = "gpu"

    @classmethod
    def of(cls, entry: Entry) -> "Sort":
        last = entry.variant.split(", ")[-1]
        return cls(entry.kind, last if last in DISTRIBUTIONS else "", entry.clock)

    def __str__(self) -> str:
        """
        >>> str(Sort("float32 (fp32)", values="sparse")), str(Sort("bfloat16", clock="wall"))
        ('float32 (fp32), sparse', 'bfloat16, by the wall clock')
        """
        return ", ".join(filter(None, (self.kind, self.values, "by the wall clock" * (self.clock == "wall"))))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Entries against an opponent that all of them have."""

    other: str
    entries: tuple[Entry, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(entry.ratio(self.other) for entry in self.entries)

    @property
    def mean(self) -> float:
        """The geometric one."""
        return statistics.geometric_mean(self.ratios)

    @property
    def verdicts(self) -> Counter[Change]:
        return Counter(entry.verdict(self.other) for entry in self.entries)


def comparisons(entries: Iterable[Entry]) -> Iterator[Comparison]:
    """The entries against each of their opponents."""
    given = tuple(entries)
    for other in opponents(given):
        yield Comparison(other, tuple(entry for entry in given if other in entry.opponents))


def gathered(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """The items of each key, in order, as they come.

    >>> gathered("abcBA", str.lower)
    {'a': ['a', 'A'], 'b': ['b', 'B'], 'c': ['c']}
    """
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_suite(entries: Iterable[Entry]) -> dict[tuple[str, Sort], list[Entry]]:
    """The entries of each suite and sort."""
    return gathered(entries, lambda entry: (entry.suite, Sort.of(entry)))
