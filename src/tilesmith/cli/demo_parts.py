"""What `tilesmith demo` says with a GPU and without one: whether a product is accurate, and how tables look."""

import math
from typing import Final

from rich.console import Console
from rich.table import Table

from tilesmith.bench.errors import Error

ROUNDINGS: Final = 2  # an error may be this many times what K roundings add up to
ERRORS: Final = "as the largest of all elements relative to |A| |B|, then as a relative norm"


def is_accurate(ours: Error, k: int) -> bool:
    """Whether the largest error is no more than rounding explains: K roundings of half a unit in the last place
    add up as a random walk does, to the square root of K of them. NaN is not accurate."""
    return ours.comp <= ROUNDINGS * math.sqrt(k) * 2**-24


def table(out: Console, title: str, *columns: str) -> Table:
    """A table that fits 80 columns, with wider gaps where there is room."""
    gap = 2 if out.width >= 100 else 1
    empty = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for column in columns:
        empty.add_column(column, no_wrap=True)
    return empty


def format_sizes(sizes: tuple[int, int, int]) -> str:
    return "x".join(map(str, sizes))
