"""The output cut into tiles, and a tile cut into the shares of those who compute it: numbers and a picture."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tilesmith.core.numbers import count, paragraph, percent, width
from tilesmith.core.plan import Plan, Tiling

_MAX_ROWS: Final = 5  # that are drawn; of more, the first and the last ones
_MAX_COLUMNS: Final = 8
_CELL: Final = 6  # characters
_MARGIN: Final = 10
_GAP: Final = 5


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of the output: equal steps, of which the last may be smaller."""

    size: int
    step: int

    @property
    def steps(self) -> int:
        return math.ceil(self.size / self.step)

    def length(self, index: int) -> int:
        return min(self.step, self.size - index * self.step)

    def shown(self, most: int) -> list[int | None]:
        """The indices to draw, and None for those that are left out.

        >>> Axis(8205, 128).shown(5)
        [0, 1, None, 63, 64]
        """
        if self.steps <= most:
            return list(range(self.steps))
        first = (most - 1) // 2
        last = most - 1 - first
        return [*range(first), None, *range(self.steps - last, self.steps)]

    def left_out(self, most: int) -> int:
        return self.steps - sum(index is not None for index in self.shown(most))


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the output is cut."""

    rows: Axis
    columns: Axis
    matrices: int
    transposed: bool  # it is the transposed output
    tiles: int  # of all matrices
    partly_filled: int
    filled: float  # the share of the tiles' elements that are elements of the output
    cluster: int  # tiles one above the other that share their columns of the second operand
    workers: str  # who shares a tile: warpgroups or warps
    worker_rows: int
    worker_columns: int
    worker_sets: int  # that have the same shares, and divide K
    loaders: int  # more warpgroups, which only load

    @classmethod
    def of(cls, plan: Plan, tiling: Tiling) -> "Tiles":
        problem = plan.problem.transposed if tiling.swap_ab else plan.problem
        rows, columns = Axis(problem.m, tiling.rows), Axis(problem.n, tiling.columns)
        tiles = rows.steps * columns.steps * problem.batches
        full = (rows.size // rows.step) * (columns.size // columns.step) * problem.batches
        elements = problem.m * problem.n * problem.batches
        divides_k = tiling.parts_of_k > plan.split_k  # the blocks of a cluster share a tile
        return cls(
            rows=rows,
            columns=columns,
            matrices=problem.batches,
            transposed=tiling.swap_ab,
            tiles=tiles,
            partly_filled=tiles - full,
            filled=elements / (tiles * tiling.rows * tiling.columns) if tiles else 0.0,
            cluster=1 if divides_k else plan.product.cluster,
            workers=tiling.workers,
            worker_rows=tiling.worker_rows,
            worker_columns=tiling.worker_columns,
            worker_sets=tiling.worker_sets,
            loaders=tiling.loaders,
        )

    def lines(self) -> Iterator[str]:
        what = "the transposed output" if self.transposed else "the output"
        tile = f"{self.rows.step} x {self.columns.step}"
        cut = f"{self.rows.steps:,} x {self.columns.steps:,} tiles of {tile}"
        each = f", in each of {self.matrices:,} matrices" if self.matrices != 1 else ""
        yield from paragraph(f"{what}, {self.rows.size} x {self.columns.size}: {cut}{each}")
        if not self.tiles:
            return
        if self.partly_filled:
            yield from paragraph(
                f"partly filled: {self.partly_filled:,} of {self.tiles:,} tiles, which show how much of them is; "
                f"of all tiles together {percent(self.filled)} is filled"
            )
        if self.cluster > 1:
            yield from paragraph(
                f"{count(self.cluster, 'tile')} one above the other are a cluster, which loads their columns of the "
                "second operand once"
            )
        yield ""
        yield from self.picture()
        yield ""
        yield from paragraph(f"one tile, {tile}: {self._sharing}")
        yield ""
        yield from self.picture_of_a_tile()

    @property
    def _sharing(self) -> str:
        down, across = self._workers
        singular = self.workers.removesuffix("s")
        sharing = f"{count(down * across, singular)}, {self.worker_rows} x {self.worker_columns} each"
        if self.worker_sets > 1:
            sharing = f"{count(self.worker_sets, 'set')} of {sharing}; the sets divide K"
        if self.loaders:
            sharing += f"; {count(self.loaders, 'more warpgroup')} only loads"
        return sharing

    @property
    def _workers(self) -> tuple[int, int]:
        """Down and across a tile."""
        return self.rows.step // self.worker_rows, self.columns.step // self.worker_columns

    def picture(self) -> Iterator[str]:
        """The output. A tile that is not full shows how much of it is."""

        def filled(row: int, column: int) -> str:
            share = self.rows.length(row) * self.columns.length(column) / (self.rows.step * self.columns.step)
            return "" if share == 1 else percent(share)

        return _draw(self.rows, self.columns, filled)

    def picture_of_a_tile(self) -> Iterator[str]:
        """The shares of a tile, with their number."""
        _, across = self._workers
        rows, columns = Axis(self.rows.step, self.worker_rows), Axis(self.columns.step, self.worker_columns)
        return _draw(rows, columns, lambda row, column: str(row * across + column + 1))


def _draw(rows: Axis, columns: Axis, content: Callable[[int, int], str]) -> Iterator[str]:
    """A grid with the lengths of its rows and columns, and something in each cell. Of many cells, those in the middle
    are left out."""
    max_columns = min(_MAX_COLUMNS, 1 + (width() - _MARGIN - _GAP - 2) // (_CELL + 1))
    shown = columns.shown(max_columns)
    margin = " " * _MARGIN
    lengths = [None if column is None else str(columns.length(column)) for column in shown]
    border = margin + _line(["" if column is not None else None for column in shown], "+", "-", "")
    yield (margin + _line(lengths, " ", " ")).rstrip()
    yield border
    for row in rows.shown(_MAX_ROWS):
        if row is None:
            yield f"{'...':>{_MARGIN - 1}}"
        else:
            cells = [None if column is None else content(row, column) for column in shown]
            yield f"{rows.length(row):>{_MARGIN - 1}} {_line(cells, '|', ' ')}"
        yield border
    left_out = [
        f"{axis.left_out(most):,} {name}"
        for axis, most, name in ((rows, _MAX_ROWS, "rows"), (columns, max_columns, "columns"))
        if axis.left_out(most)
    ]
    if left_out:
        yield f"{margin}{' and '.join(left_out)} in the middle are left out"


def _line(cells: Sequence[str | None], edge: str, filling: str, gap: str = "...") -> str:
    """Cells of one width between their edges; None is a gap."""
    parts = (f"{gap:^{_GAP}}" if cell is None else f"{cell:{filling}^{_CELL}}" for cell in cells)
    return edge + "".join(part + edge for part in parts)
