"""What the plots and the table of the page share: the place of each entry in it, and how a ratio is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.results import Change, Entry, Results

SIGNS: Final[dict[Change, str]] = {"faster": "▲", "same": "=", "slower": "▼"}


@dataclass(frozen=True, slots=True)
class Row:
    """An entry in the page's table."""

    entry: Entry
    id: str  # what a link to it has after its #


def rows(runs: Sequence[Results]) -> list[list[Row]]:
    """Those of each run."""
    found: list[list[Row]] = []
    for run in runs:
        first = sum(map(len, found))
        found.append([Row(entry, f"entry-{i}") for i, entry in enumerate(run.entries, first)])
    return found


def described(run: Results) -> str:
    """A run in a few words."""
    environment = run.environment
    return ", ".join(filter(None, (environment.date, environment.gpu, environment.commit)))


def breakable(shape: str) -> Markup:
    """A shape that may go on in the next line between its sizes, not within one.

    >>> breakable("16x32")
    '16x<wbr>32'
    """
    return Markup(element("wbr").join(f"{joined(size)}x" for size in shape.split("x")).removesuffix("x"))


def verdict(ratio: float, change: Change) -> Markup:
    return element("span", f"{ratio:.3f} ", element("abbr", SIGNS[change], title=change), class_=f"value {change}")
