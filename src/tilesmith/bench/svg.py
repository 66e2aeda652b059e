"""Plots as SVG that fits its place: all positions are shares of the width and height, and text keeps its size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tilesmith.bench.axis import Axis, tick_label
from tilesmith.bench.markup import Markup, element, joined

_LINE_APART: Final = 0.065  # of a plot's height between two labels beside it: less, and they meet on a phone
_MARKS_AT: Final = 48  # pixels, right of a label of four digits
_MARK_WIDTH: Final = 13


@dataclass(frozen=True, slots=True)
class Point:
    """An entry in a plot."""

    x: float
    y: float
    mark: str  # the id of a shape, and the class that colours it
    title: str
    link: str  # where a click leads


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line between two points of a plot."""

    start: tuple[float, float]
    end: tuple[float, float]
    kind: str


@dataclass(frozen=True, slots=True)
class Level:
    """A height that is labelled to the right of a plot, with the marks of what it holds for."""

    y: float
    label: str
    marks: tuple[str, ...]
    title: str


def percent(share: float) -> str:
    return f"{share:.2%}"


def scatter(
    points: Iterable[Point],
    lines: Iterable[Line],
    *,
    x: Axis,
    y: Axis,
    x_title: str,
    y_title: str,
    title: str,
    levels: Sequence[Level] = (),
) -> Markup:
    """A plot of points that are links, with lines behind them. All text is beside it, in SVGs of its own, so that it
    covers no point."""

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return x.share(point[0]), 1 - y.share(point[1])

    grid = [_stroke((x.share(tick), 0), (x.share(tick), 1), "grid") for tick in x.ticks]
    grid += [_stroke((0, 1 - y.share(tick)), (1, 1 - y.share(tick)), "grid") for tick in y.ticks]
    drawn = [_stroke(at(line.start), at(line.end), line.kind) for line in lines]
    marks = []
    for point in points:
        across, down = map(percent, at((point.x, point.y)))
        hint = element("title", point.title)
        mark = element("use", hint, href=f"#{point.mark}", x=across, y=down, class_=point.mark)
        marks.append(element("a", mark, href=f"#{point.link}", aria_label=point.title))
    plot = element("svg", *grid, *drawn, *marks, class_="area", role="group", aria_label=title)
    return element(
        "div",
        element("span", y_title, class_="y-title"),
        ticks(y, "y-ticks", vertical=True),
        plot,
        _levels(levels, y) if levels else "",
        ticks(x, "x-ticks"),
        element("span", x_title, class_="x-title"),
        class_="plot",
    )


def _levels(levels: Iterable[Level], y: Axis) -> Markup:
    """Their labels, from the highest, each far enough below the one before."""
    drawn, lowest = [], -1.0
    for level in sorted(levels, key=lambda each: each.y, reverse=True):
        lowest = max(1 - y.share(level.y), lowest + _LINE_APART)
        down = percent(lowest)
        drawn.append(element("text", level.label, element("title", level.title), x="6", y=down, dy="0.35em"))
        drawn += (
            element("use", href=f"#{mark}", x=str(_MARKS_AT + i * _MARK_WIDTH), y=down, class_=mark)
            for i, mark in enumerate(level.marks)
        )
    return element("svg", *drawn, class_="levels", aria_hidden="true")


def bar(ratio: float, interval: tuple[float, float], noise: tuple[float, float], axis: Axis, kind: str) -> Markup:
    """A ratio as a bar from 1, over the band that noise may fill, with the interval that it lies in."""
    start, end = sorted((axis.share(1), axis.share(ratio)))
    low, high = (axis.share(each) for each in interval)
    least, most = (axis.share(each) for each in noise)
    return element(
        "svg",
        *(_stroke((axis.share(tick), 0), (axis.share(tick), 1), "grid") for tick in axis.ticks),
        element("rect", x=percent(least), width=percent(most - least), y="0", height="100%", class_="noise"),
        element("rect", x=percent(start), width=percent(end - start), y="22%", height="56%", class_=kind),
        _stroke((low, 0.5), (high, 0.5), "interval"),
        _stroke((axis.share(1), 0), (axis.share(1), 1), "one"),
        class_="bar",
        aria_hidden="true",
    )


def split(parts: Iterable[tuple[str, int]]) -> Markup:
    """Counts as parts of one bar."""
    counts = list(parts)
    total = sum(count for _, count in counts)
    drawn, before = [], 0
    for kind, count in counts:
        begin, width = percent(before / total), percent(count / total)
        drawn.append(element("rect", x=begin, width=width, height="100%", class_=kind))
        before += count
    return element("svg", *drawn, class_="split", aria_hidden="true")


def _stroke(start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
    (x1, y1), (x2, y2) = start, end
    return element("line", x1=percent(x1), y1=percent(y1), x2=percent(x2), y2=percent(y2), class_=kind)


def ticks(axis: Axis, kind: str, *, vertical: bool = False) -> Markup:
    """The labels of an axis, below what it is of or, if it is vertical, to the left."""

    def tick(value: float) -> Markup:
        share = axis.share(value)
        if vertical:
            return element("text", tick_label(value), x="100%", y=percent(1 - share), dx="-6", dy="0.35em")
        return element("text", tick_label(value), x=percent(share), y="1.1em")

    return element("svg", joined(*map(tick, axis.ticks)), class_=kind, aria_hidden="true")
