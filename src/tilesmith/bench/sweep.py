"""Products drawn at random, the same ones each time: what the tables `[sweep]` and `[random]` of a suite stand for.

They are entries of a suite, as if they had been written down there.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import Any, Final

import torch

_LAYOUTS: Final = {"n": "rows", "t": "transposed"}
_SECOND_FLOOR: Final = 128  # every other product has no size below this

# Of AnyShapes.
_ANY_SIZE: Final = 0.35  # of the products have sizes from 1 on, the others from 32 on
_SMALLEST_OF_OTHERS: Final = 32
_LOG2_OF_LARGEST: Final = 14.2
_BATCHES: Final = 0.25  # of the products
_LOG2_OF_LARGEST_BATCH: Final = 8
_MIN_FLOPS, _MAX_FLOPS, _MAX_ELEMENTS = 2e6, 8e11, 7.5e8


@dataclass(frozen=True, slots=True)
class Sweep:
    """Calls, types and layouts take turns, in a random order; sizes are drawn for each product."""

    seed: int
    count: int
    max_size: int
    max_batch: int
    max_flops: int
    max_bytes: int  # of operands, addend and result
    calls: Sequence[Mapping[str, Any]]  # fields of Product: an operator, and what it adds
    dtypes: Sequence[str]
    layouts: Sequence[str]  # A's and B's: "nn", "nt", "tn"

    def entries(self) -> Iterator[dict[str, Any]]:
        """Half of the products have any sizes from 1 on, half from 128 on."""
        draw = random.Random(self.seed)
        kinds = list(product(self.calls, self.dtypes, self.layouts))
        draw.shuffle(kinds)
        floors = cycle((1, min(_SECOND_FLOOR, self.max_size)))
        for (call, dtype, layout), floor in islice(zip(cycle(kinds), floors, strict=False), self.count):
            batch, m, k, n = self._sizes(draw, floor, call, getattr(torch, dtype).itemsize)
            yield {
                "name": f"{call['operator']} {m}x{k}x{n}",
                "m": m,
                "k": k,
                "n": n,
                "why": "drawn at random",
                "a_layout": _LAYOUTS[layout[0]],
                "b_layout": _LAYOUTS[layout[1]],
                "batch": batch,
                "dtype": dtype,
                **call,
            }

    def _sizes(
        self, draw: random.Random, floor: int, call: Mapping[str, Any], itemsize: int
    ) -> tuple[int, int, int, int]:
        """The batch (0 for operators that have none), M, K and N, drawn until they are not too large."""
        has_batch = "bmm" in call["operator"]
        while True:
            batch = _size(draw, 1, min(self.max_batch, self.max_size)) if has_batch else 0
            m, k, n = (_size(draw, floor, self.max_size) for _ in "mkn")
            matrices = max(batch, 1)
            elements = m * k + k * n + 2 * m * n
            if 2 * matrices * m * k * n <= self.max_flops and matrices * elements * itemsize <= self.max_bytes:
                return batch, m, k, n


@dataclass(frozen=True, slots=True)
class AnyShapes:
    """Sizes of any magnitude, in any layouts; a quarter of the products are batches."""

    seed: int
    count: int

    def entries(self) -> Iterator[dict[str, Any]]:
        draw = random.Random(self.seed)
        for _ in range(self.count):
            batch, m, k, n = self._sizes(draw)
            layouts = [draw.choice(list(_LAYOUTS.values())) for _ in "ab"]
            sizes = f"{m}x{k}x{n}"
            yield {
                "name": f"{batch}x({sizes})" if batch else sizes,
                **{"m": m, "k": k, "n": n, "batch": batch, "a_layout": layouts[0], "b_layout": layouts[1]},
            }

    @staticmethod
    def _sizes(draw: random.Random) -> tuple[int, int, int, int]:
        """The batch (0 for none), M, K and N, drawn until there is enough to do, and not too much."""
        while True:
            least = 1 if draw.random() < _ANY_SIZE else _SMALLEST_OF_OTHERS
            m, k, n = (_rounded(2 ** draw.uniform(math.log2(least), _LOG2_OF_LARGEST), draw) for _ in "mkn")
            batch = round(2 ** draw.uniform(1, _LOG2_OF_LARGEST_BATCH)) if draw.random() < _BATCHES else 0
            matrices = max(batch, 1)
            flops, elements = 2 * matrices * m * k * n, matrices * (m * k + k * n + m * n)
            if _MIN_FLOPS < flops < _MAX_FLOPS and elements < _MAX_ELEMENTS:
                return batch, m, k, n


def _rounded(size: float, draw: random.Random) -> int:
    """Of ten sizes, four are as they are, three multiples of 8 and three of 64."""
    step = draw.choices((1, 8, 64), (4, 3, 3))[0]
    return max(int(size) // step, 1) * step


def _size(draw: random.Random, least: int, most: int) -> int:
    """Each power of two is as likely as the next; every other size is a multiple of 8, if it is not below."""
    drawn = round(2 ** draw.uniform(math.log2(least), math.log2(most)))
    return drawn - drawn % 8 if draw.random() < 0.5 and drawn >= 8 else drawn
