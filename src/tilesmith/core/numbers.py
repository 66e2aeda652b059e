"""Numbers and sentences as people read them, 80 columns wide or less."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

WIDTH: Final = 80
_MIN_WIDTH: Final = 40  # of a paragraph: a narrower one has a word in each line
_width: Final = ContextVar("_width", default=WIDTH)
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_WORDS: Final = ("no", "one", "two", "three", "four", "five", "six")


def quantity(value: float, unit: str) -> str:
    """Four digits, and the power of a thousand that goes with them.

    >>> quantity(286.5e9, "FLOP"), quantity(4.8e12, "B/s"), quantity(0, "B"), quantity(999_999, "B")
    ('286.5 GFLOP', '4.8 TB/s', '0 B', '1 MB')
    """
    power = 0
    while float(f"{value:.4g}") >= 1000 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.4g} {_PREFIXES[power]}{unit}"


def microseconds(value: float) -> str:
    """
    >>> microseconds(3.14159), microseconds(1234.5)
    ('3.1 us', '1,234 us')
    """
    return f"{value:.1f} us" if value < 100 else f"{value:,.0f} us"


def percent(share: float) -> str:
    """Never quite all or nothing where it is less than all, or more than nothing.

    >>> percent(1), percent(0.999), percent(0.5), percent(0.001), percent(0)
    ('100%', '99%', '50%', '1%', '0%')
    """
    rounded = round(100 * share)
    if 0 < share < 1:
        rounded = min(max(rounded, 1), 99)
    return f"{rounded}%"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "tile"), count(3, "product"), count(2046, "tile")
    ('one tile', 'three products', '2,046 tiles')
    """
    word = _WORDS[number] if number < len(_WORDS) else f"{number:,}"
    return f"{word} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["A", "B"]), listed(["A"])
    ('A and B', 'A')
    """
    return " and ".join(names)


def paragraph(text: str, first: str = "  ", indent: str | None = None) -> list[str]:
    """Lines of at most 80 columns. `first` opens the first of them, `indent` the others."""
    rest = " " * len(first) if indent is None else indent
    return textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def fitting(lines: Iterable[str]) -> Iterator[str]:
    """The lines, those that are too long in parts, the later ones further to the right.

    >>> with lines_of(40):
    ...     list(fitting(["  286.5 GFLOP, 793.8 for each byte that must be moved"]))
    ['  286.5 GFLOP, 793.8 for each byte that', '    must be moved']
    """
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from paragraph(line, "", indent) if len(line) > width() else (line,)


def width() -> int:
    """The columns that lines have."""
    return _width.get()


@contextmanager
def lines_of(columns: int | None) -> Iterator[None]:
    """Paragraphs that are made within are no wider than this, if that is less than 80 columns.

    >>> with lines_of(50):
    ...     paragraph("a sentence of about sixty letters, which is no longer than that")
    ['  a sentence of about sixty letters, which is no', '  longer than that']
    """
    token = _width.set(min(WIDTH, max(columns or WIDTH, _MIN_WIDTH)))
    try:
        yield
    finally:
        _width.reset(token)
