"""The plots of the page: ratios, the roofline, errors."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from tilesmith.bench import svg
from tilesmith.bench.axis import Axis, tick_label
from tilesmith.bench.groups import Comparison, Sort, gathered
from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.page_rows import Row, breakable, described, rows, verdict
from tilesmith.bench.results import FLOAT32_FLOOR, Entry, Results, opponents

_MARKS: Final = {"bf16": "circle", "fp16": "square", "fp32": "diamond", "tf32": "wedge", "fp64": "triangle"}
_OTHER_MARK: Final = "cross"
_MANY: Final = 30  # products, of which one wants to see where they are
_NARROWEST: Final = (0.8, 1.25)  # ratios that every axis has: a smaller one would make noise look large


def bars(runs: Sequence[Results]) -> Markup:
    """A section for each run, in it a card for each suite and sort, folded but for those against the first opponent."""
    sections = []
    for i, (run, found) in enumerate(zip(runs, rows(runs), strict=True)):
        of_run = element("small", element("a", described(run), href=f"#run-{i}"))
        title = element("h3", ", ".join(run.suites) or "nothing", " ", of_run)
        sections.append(element("section", title, _one_open(found, _bars_against), class_="run"))
    return joined(*sections)


def _one_open(found: Sequence[Row], content: Callable[[list[Row], str], Markup | None]) -> Markup:
    """What there is for each opponent, folded but for the first."""
    shown: list[Markup] = []
    for other in opponents(row.entry for row in found):
        drawn = content([row for row in found if other in row.entry.opponents], other)
        if drawn is not None:
            shown.append(element("details", element("summary", f"Against {other}"), drawn, open=not shown))
    return joined(*shown)


def _bars_against(found: list[Row], other: str) -> Markup:
    cards = []
    for (suite, sort), group in gathered(found, lambda row: (row.entry.suite, Sort.of(row.entry))).items():
        mean = Comparison(other, tuple(row.entry for row in group)).mean
        title = element("h4", f"{suite}, {sort} ", element("small", f"geometric mean {mean:.3f}"))
        cards.append(element("section", title, _bars_of(group, other, sort), class_="card"))
    return element("div", *cards, class_="cards")


def _bars_of(group: list[Row], other: str, sort: Sort) -> Markup:
    axis = Axis.around([*_NARROWEST, *(row.entry.ratio(other) for row in group)])
    items = []
    for row in group:
        entry = row.entry
        change, ratio = entry.verdict(other), entry.ratio(other)
        noise = (math.exp(-entry.noise), math.exp(entry.noise))
        name = element("small", entry.variant.removesuffix(sort.values).removesuffix(", ") or entry.name)
        label = element("a", breakable(entry.shape), " ", name, href=f"#{row.id}", class_="label")
        drawn = svg.bar(ratio, entry.ratio_interval(other), noise, axis, change)
        items.append(element("li", label, drawn, verdict(ratio, change)))
    scale = element("li", svg.ticks(axis, "bar-ticks"), class_="scale", aria_hidden="true")
    return element("ul", *items, scale, class_="bars")


def ratios(runs: Sequence[Results]) -> Markup:
    """Where among many products the slow ones are."""
    drawn = _one_open([row for run in rows(runs) for row in run], _ratios_against)
    return element("section", element("h3", "All ratios by size"), drawn, class_="run") if drawn else drawn


def _ratios_against(found: list[Row], other: str) -> Markup | None:
    if len(found) < _MANY:
        return None
    y = Axis.around([*_NARROWEST, *(row.entry.ratio(other) for row in found)])
    sizes: dict[str, Callable[[Entry], float]] = {
        "floating-point operations": lambda entry: entry.flops,
        "operations for each byte that must be moved": lambda entry: entry.intensity,
    }
    plots = []
    for x_title, size in sizes.items():
        x = Axis.around([size(row.entry) for row in found])
        plots.append(
            svg.scatter(
                _points(found, size, lambda entry: entry.ratio(other), lambda entry: _ratio_title(entry, other)),
                [svg.Line((x.low, 1.0), (x.high, 1.0), "one")],
                x=x,
                y=y,
                x_title=x_title,
                y_title=f"time of {other} / ours",
                title=f"Ratio to {other} against {x_title}",
            )
        )
    return element("div", element("div", *plots, class_="plots"), _legend(found), class_="card")


def _points(
    found: Iterable[Row], x: Callable[[Entry], float], y: Callable[[Entry], float], title: Callable[[Entry], str]
) -> Iterable[svg.Point]:
    for row in found:
        entry = row.entry
        yield svg.Point(x(entry), y(entry), _mark(entry.ours.precision), title(entry), row.id)


def _ratio_title(entry: Entry, other: str) -> str:
    return f"{entry.label}: {entry.ratio(other):.3f} of {other}, {entry.plan}"


def rooflines(runs: Sequence[Results]) -> Markup:
    """One for each GPU."""
    by_gpu = gathered(zip(runs, rows(runs), strict=True), lambda pair: pair[0].environment.gpu)
    cards = (_roofline([row for _, found in pairs for row in found], pairs[0][0]) for pairs in by_gpu.values())
    return joined(*cards)


def _roofline(found: list[Row], run: Results) -> Markup:
    """With all that was measured on the run's GPU."""
    if not found:
        return element("p", "Nothing was measured.")
    gpu = run.environment.gpu
    results = replace(run, entries=tuple(row.entry for row in found))
    peaks, bandwidth = results.peaks, results.bandwidth
    x, y = Axis.of_roofline(results)
    plot = svg.scatter(
        _points(found, lambda entry: entry.intensity, lambda entry: entry.tflops, _roofline_title),
        _roofs(peaks, bandwidth, x, y),
        x=x,
        y=y,
        x_title="operations for each byte that must be moved",
        y_title="TFLOP/s",
        title=f"Speed on {gpu} against arithmetic intensity, with the rooflines",
        levels=[
            svg.Level(peak, f"{peak:g}", tuple(map(_mark, names.split(", "))), f"{names}: {peak:g} TFLOP/s")
            for names, peak in peaks.items()
        ],
    )
    memory = {} if bandwidth is None else {"roof": f"memory, {bandwidth / 1e3:.2g} TB/s; peak TFLOP/s on the right"}
    return element("div", element("h3", gpu), plot, _legend(found, memory), class_="card")


def _roofs(peaks: dict[str, float], bandwidth: float | None, x: Axis, y: Axis) -> list[svg.Line]:
    """A level for each peak, from where memory can feed it, and the slope of memory up to the highest of them."""

    def on_slope(tflops: float) -> tuple[float, float]:
        return (tflops / bandwidth * 1e3 if bandwidth else x.low), tflops

    lines = [svg.Line(on_slope(peak), (x.high, peak), "roof") for peak in peaks.values()]
    if bandwidth:
        top = min(max(peaks.values(), default=y.high), x.high * bandwidth * 1e-3)
        bottom = max(y.low, x.low * bandwidth * 1e-3)
        lines.append(svg.Line(on_slope(bottom), on_slope(top), "roof"))
    return lines


def _roofline_title(entry: Entry) -> str:
    share = "" if entry.roofline_share is None else f", {entry.roofline_share:.0%} of its roofline"
    return f"{entry.label}: {entry.tflops:.4g} TFLOP/s{share}"


def errors(runs: Sequence[Results]) -> Markup:
    return _one_open([row for run in rows(runs) for row in run], _errors_against)


def _errors_against(compared: list[Row], other: str) -> Markup | None:
    found = [(row, norms) for row in compared if (norms := row.entry.norms(other)) is not None]
    if not found:
        return None
    has_float32 = any(row.entry.dtype == "float32" for row, _ in found)
    every_norm = [norm for _, norms in found for norm in norms]
    axis = Axis.around([*every_norm, *([FLOAT32_FLOOR] if has_float32 else [])])
    lines = [svg.Line((axis.low, axis.low), (axis.high, axis.high), "diagonal")]
    names = {"diagonal": "the same error"}
    if has_float32:
        lines.append(svg.Line((axis.low, FLOAT32_FLOOR), (axis.high, FLOAT32_FLOOR), "floor"))
        names["floor"] = f"floor of float32, {tick_label(FLOAT32_FLOOR)}"
    points = []
    for row, (theirs, ours) in found:
        title = f"{row.entry.label}: ours {ours:.2e}, {other} {theirs:.2e}"
        points.append(svg.Point(theirs, ours, _mark(row.entry.ours.precision), title, row.id))
    plot = svg.scatter(
        points,
        lines,
        x=axis,
        y=axis,
        x_title=f"error of {other} in norm",
        y_title="our error in norm",
        title=f"Our error against that of {other}",
    )
    return element("div", plot, _legend((row for row, _ in found), names), class_="card narrow")


def _mark(precision: str) -> str:
    return _MARKS.get(precision, _OTHER_MARK)


def _legend(found: Iterable[Row], lines: dict[str, str] | None = None) -> Markup:
    """The marks by precision class, and lines by what they are."""
    items = []
    for precision in dict.fromkeys(row.entry.ours.precision for row in found):
        mark = _mark(precision)
        shape = element("use", href=f"#{mark}", x="50%", y="50%", class_=mark)
        items.append(element("li", element("svg", shape, aria_hidden="true"), precision))
    for kind, name in (lines or {}).items():
        stroke = element("line", x1="0", y1="50%", x2="100%", y2="50%", class_=kind)
        items.append(element("li", element("svg", stroke, aria_hidden="true", class_="stroke"), name))
    return element("ul", *items, class_="legend", aria_label="What the marks and lines are")
