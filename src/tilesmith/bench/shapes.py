"""Products as a person writes them on a command line."""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tilesmith.bench.vocabulary import LAYOUTS, SYNTAX

if TYPE_CHECKING:
    from tilesmith.bench.suites import Product

_LAYOUTS: Final = {"n": "rows", "t": "transposed"}
_SHAPE: Final = re.compile(r"([0-9]+)x([0-9]+)x([0-9]+)(?::([^:]*))?(?::([^:]*))?")
_MAX_DIGITS: Final = 18  # of a size: it is less than 2^63
_MAX_ELEMENTS: Final = 2**63 // 8 - 1  # of a tensor of float64: torch counts bytes in 64 bits


class Shape(NamedTuple):
    """A product without types."""

    m: int
    k: int
    n: int
    a_layout: str
    b_layout: str
    batch: int  # 0 for plain matrices


def read(text: str) -> Shape:
    """The product that is meant: sizes, and where they matter the layouts of A and B (n for rows, t for stored
    transposed) and how many matrices there are on either side. ValueError if it is none. This needs no torch.

    >>> read("2048x8192x4096:tn")
    Shape(m=2048, k=8192, n=4096, a_layout='transposed', b_layout='rows', batch=0)
    >>> read("512x1024")
    Traceback (most recent call last):
    ValueError: '512x1024' is not a product: write MxKxN[:LAYOUT][:BATCH], as in 4096x1024x2048 or 512x64x512:nt:16
    """
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a product: write {SYNTAX}, as in 4096x1024x2048 or 512x64x512:nt:16")
    layout, batch = found.group(4) or LAYOUTS[0], found.group(5) or ""
    if layout not in LAYOUTS:
        known = f"{', '.join(LAYOUTS[:-1])} and {LAYOUTS[-1]}"
        raise ValueError(f"{text!r} has the layout {layout!r}; it is one of {known}: A's, then B's")
    if batch and (not re.fullmatch("[0-9]+", batch) or not batch.strip("0")):
        raise ValueError(f"{text!r} has a batch of {batch!r}; it is a number, of 1 at least")
    numbers = [number.lstrip("0") for number in (*found.group(1, 2, 3), batch)]
    if "" in numbers[:3]:
        raise ValueError(f"{text!r} has a size of 0, and nothing is to be multiplied")
    if max(map(len, numbers)) <= _MAX_DIGITS:
        m, k, n, matrices = (int(number or 0) for number in numbers)
        if max(m * k, k * n, m * n) * max(matrices, 1) <= _MAX_ELEMENTS:
            return Shape(m, k, n, _LAYOUTS[layout[0]], _LAYOUTS[layout[1]], matrices)
    raise ValueError(
        f"{_shortened(text)} has a matrix of more elements than a tensor can have, which are {_MAX_ELEMENTS}"
    )


def parse(text: str, dtype: str = "float32") -> "Product":
    """The same as a product of a suite.

    >>> print(parse("8205x2949x5921"))
    8205x2949x5921
    >>> print(parse("2048x8192x4096:tn"))
    2048x8192x4096 a transposed
    >>> print(parse("512x1024x2048::128"), "=", parse("512x1024x2048:nn:128"))
    128x(512x1024x2048) = 128x(512x1024x2048)
    """
    from tilesmith.bench.suites import Product

    found = read(text)
    sizes, layouts = (found.m, found.k, found.n), (found.a_layout, found.b_layout)
    return Product(text, *sizes, "asked for by its sizes", *layouts, found.batch, dtype)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
