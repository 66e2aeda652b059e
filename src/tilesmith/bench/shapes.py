"""Products as a person writes them on a command line."""

import re
from typing import Final

from tilesmith.bench.suites import Product

SYNTAX: Final = "MxKxN[:LAYOUT][:BATCH]"

_LAYOUTS: Final = {"n": "rows", "t": "transposed"}
_SHAPE: Final = re.compile(r"(\d+)x(\d+)x(\d+)(?::([^:]*))?(?::([^:]*))?")


def parse(text: str, dtype: str = "float32") -> Product:
    """The product that is meant: sizes, and where they matter the layouts of A and B (n for rows, t for stored
    transposed) and how many matrices there are on either side.

    >>> print(parse("8205x2949x5921"))
    8205x2949x5921
    >>> print(parse("2048x8192x4096:tn"))
    2048x8192x4096 a transposed
    >>> print(parse("512x1024x2048::128"), "=", parse("512x1024x2048:nn:128"))
    128x(512x1024x2048) = 128x(512x1024x2048)
    >>> parse("512x1024")
    Traceback (most recent call last):
    ValueError: '512x1024' is not a product: write MxKxN[:LAYOUT][:BATCH], as in 4096x1024x2048 or 512x64x512:nt:16
    """
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a product: write {SYNTAX}, as in 4096x1024x2048 or 512x64x512:nt:16")
    m, k, n = (int(size) for size in found.group(1, 2, 3))
    if 0 in (m, k, n):
        raise ValueError(f"{text!r} has a size of 0, and nothing is to be multiplied")
    layout, batch = found.group(4) or "nn", found.group(5) or ""
    if not re.fullmatch("[nt]{2}", layout):
        raise ValueError(f"{text!r} has the layout {layout!r}; it is one of nn, nt, tn and tt: A's, then B's")
    if batch and (not batch.isdecimal() or int(batch) == 0):
        raise ValueError(f"{text!r} has a batch of {batch!r}; it is a number, of 1 at least")
    a_layout, b_layout = (_LAYOUTS[letter] for letter in layout)
    return Product(text, m, k, n, "asked for by its sizes", a_layout, b_layout, int(batch or 0), dtype)
