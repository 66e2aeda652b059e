"""The plots of the page: ratios, the roofline, errors."""

import math
from collections.abc import Callable, Iterable
from typing import Final

from tilesmith.bench import svg
from tilesmith.bench.axis import Axis
from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.page_table import breakable, row_id, verdict
from tilesmith.bench.results import FLOAT32_FLOOR, Entry, Results

_MARKS: Final = {"bf16": "circle", "fp16": "square", "fp32": "diamond", "tf32": "wedge", "fp64": "triangle"}
_OTHER_MARK: Final = "cross"
_MANY: Final = 30  # products, of which one wants to see where they are
_NARROWEST: Final = (0.8, 1.25)  # ratios that every axis has: a smaller one would make noise look large


def bars(results: Results) -> Markup:
    return _one_open(results.opponents, lambda other: _bars_against(results, other))


def _one_open(opponents: Iterable[str], content: Callable[[str], Markup | None]) -> Markup:
    """What there is for each opponent, folded but for the first."""
    shown = [(other, found) for other in opponents if (found := content(other)) is not None]
    folded = (
        element("details", element("summary", f"Against {other}"), found, open=i == 0)
        for i, (other, found) in enumerate(shown)
    )
    return joined(*folded)


def _bars_against(results: Results, other: str) -> Markup:
    cards = []
    for suite in results.suites:
        mean = results.mean_ratio(suite, other)
        if mean is not None:
            title = element("h3", suite, element("small", f"geometric mean {mean:.3f}"))
            cards.append(element("section", title, _bars_of(results, suite, other), class_="card"))
    return element("div", *cards, class_="cards")


def _bars_of(results: Results, suite: str, other: str) -> Markup:
    entries = [(i, e) for i, e in enumerate(results.entries) if e.suite == suite and other in e.competitors]
    axis = Axis.around([*_NARROWEST, *(entry.ratio(other) for _, entry in entries)])
    rows = []
    for i, entry in entries:
        change, ratio = entry.verdict(other), entry.ratio(other)
        noise = (math.exp(-entry.noise), math.exp(entry.noise))
        label = element("a", breakable(entry.shape), element("small", entry.kind), href=f"#{row_id(i)}", class_="label")
        drawn = svg.bar(ratio, entry.ratio_interval(other), noise, axis, change)
        rows.append(element("li", label, drawn, verdict(ratio, change)))
    scale = element("li", svg.ticks(axis, "bar-ticks"), class_="scale", aria_hidden="true")
    return element("ul", *rows, scale, class_="bars")


def ratios(results: Results) -> Markup:
    """Where among many products the slow ones are."""
    return _one_open(results.opponents, lambda other: _ratios_against(results, other))


def _ratios_against(results: Results, other: str) -> Markup | None:
    found = [(i, entry) for i, entry in enumerate(results.entries) if other in entry.competitors]
    if len(found) < _MANY:
        return None
    y = Axis.around([*_NARROWEST, *(entry.ratio(other) for _, entry in found)])
    sizes: dict[str, Callable[[Entry], float]] = {
        "floating-point operations": lambda entry: entry.flops,
        "operations for each byte that must be moved": lambda entry: entry.intensity,
    }
    plots = []
    for x_title, size in sizes.items():
        x = Axis.around([size(entry) for _, entry in found])
        points = (
            svg.Point(size(entry), entry.ratio(other), _mark(entry), _ratio_title(entry, other), row_id(i))
            for i, entry in found
        )
        plots.append(
            svg.scatter(
                *(points, [svg.Line((x.low, 1.0), (x.high, 1.0), "floor")]),
                x=x,
                y=y,
                x_title=x_title,
                y_title=f"time of {other} / ours",
                title=f"Ratio to {other} against {x_title}",
            )
        )
    return element("div", *plots, _legend(entry for _, entry in found), class_="card")


def _ratio_title(entry: Entry, other: str) -> str:
    return f"{entry.shape} {entry.kind}: {entry.ratio(other):.3f} of {other}, {entry.plan}"


def roofline(results: Results) -> Markup:
    entries = results.entries
    if not entries:
        return element("p", "Nothing was measured.")
    peaks, bandwidth = results.peaks, results.bandwidth
    x, y = Axis.of_roofline(results)
    points = (
        svg.Point(entry.intensity, entry.tflops, _mark(entry), _roofline_title(entry), row_id(i))
        for i, entry in enumerate(entries)
    )
    plot = svg.scatter(
        *(points, _roofs(peaks, bandwidth, x, y)),
        x=x,
        y=y,
        x_title="operations for each byte that must be moved",
        y_title="TFLOP/s",
        title="Speed against arithmetic intensity, with the rooflines",
    )
    return element("div", plot, _legend(entries), class_="card")


def _roofs(peaks: dict[str, float], bandwidth: float | None, x: Axis, y: Axis) -> list[svg.Line]:
    """A level for each peak, from where memory can feed it, and the slope of memory up to the highest of them."""

    def on_slope(tflops: float) -> tuple[float, float]:
        return (tflops / bandwidth * 1e3 if bandwidth else x.low), tflops

    lines = [svg.Line(on_slope(peak), (x.high, peak), "roof", f"{name}: {peak:g}") for name, peak in peaks.items()]
    if bandwidth:
        top = min(max(peaks.values(), default=y.high), x.high * bandwidth * 1e-3)
        bottom = max(y.low, x.low * bandwidth * 1e-3)
        middle = on_slope(math.sqrt(bottom * top))
        lines.append(svg.Line(on_slope(bottom), on_slope(top), "roof"))
        lines.append(svg.Line(middle, middle, "slope", f"memory: {bandwidth / 1e3:.3g} TB/s"))
    return lines


def _roofline_title(entry: Entry) -> str:
    share = "" if entry.roofline_share is None else f", {entry.roofline_share:.0%} of its roofline"
    return f"{entry.shape} {entry.kind}: {entry.tflops:.4g} TFLOP/s{share}"


def errors(results: Results) -> Markup:
    return _one_open(results.opponents, lambda other: _errors_against(results.entries, other))


def _errors_against(entries: tuple[Entry, ...], other: str) -> Markup | None:
    found = [
        (i, entry, norms)
        for i, entry in enumerate(entries)
        if other in entry.competitors and (norms := entry.norms(other)) is not None
    ]
    if not found:
        return None
    has_float32 = any(entry.dtype == "float32" for _, entry, _ in found)
    every_norm = [norm for _, _, both in found for norm in both]
    axis = Axis.around([*every_norm, *([FLOAT32_FLOOR] if has_float32 else [])])
    upper = axis.low ** (1 / 4) * axis.high ** (3 / 4)
    lines = [
        svg.Line((axis.low, axis.low), (axis.high, axis.high), "diagonal"),
        svg.Line((upper, upper), (upper, upper), "slope", "the same error"),
    ]
    if has_float32:
        lines.append(svg.Line((axis.low, FLOAT32_FLOOR), (axis.high, FLOAT32_FLOOR), "floor", "floor of float32, 3e-7"))
    points = []
    for i, entry, (theirs, ours) in found:
        title = f"{entry.shape} {entry.kind}: ours {ours:.2e}, {other} {theirs:.2e}"
        points.append(svg.Point(theirs, ours, _mark(entry), title, row_id(i)))
    plot = svg.scatter(
        *(points, lines),
        x=axis,
        y=axis,
        x_title=f"error of {other} in norm",
        y_title="our error in norm",
        title=f"Our error against that of {other}",
    )
    return element("div", plot, _legend(entry for _, entry, _ in found), class_="card narrow")


def _mark(entry: Entry) -> str:
    return _MARKS.get(entry.ours.precision, _OTHER_MARK)


def _legend(entries: Iterable[Entry]) -> Markup:
    items = []
    for precision, mark in dict.fromkeys((entry.ours.precision, _mark(entry)) for entry in entries):
        shape = element("use", href=f"#{mark}", x="50%", y="50%", class_=mark)
        items.append(element("li", element("svg", shape, aria_hidden="true"), precision))
    return element("ul", *items, class_="legend", aria_label="Precision classes")
