"""The table of the page: a row for each entry, all that was measured of it, what matters most first."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tilesmith.bench.markup import Markup, element
from tilesmith.bench.page_rows import breakable, rows, verdict
from tilesmith.bench.results import AGAIN, OURS, Competitor, Entry, Results


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Entry], Markup]
    note: str = ""  # what the heading means
    is_number: bool = True


def table(runs: Sequence[Results]) -> Markup:
    head = (
        element("th", each.heading, scope="col", title=each.note or None, class_="number" if each.is_number else None)
        for each in _COLUMNS
    )
    body = (
        element(
            *("tr", *(each.cell(row.entry) for each in _COLUMNS)),
            id=row.id,
            data_suite=row.entry.suite,
            data_dtype=row.entry.dtype,
        )
        for run in rows(runs)
        for row in run
    )
    return element("table", element("thead", element("tr", *head)), element("tbody", *body), id="entries")


def _number_cell(value: float | None, text: str, *more: str) -> Markup:
    """A cell that is sorted by its value; one without comes last."""
    if value is None or not math.isfinite(value):
        return element("td", element("span", "none", class_="none"), class_="number")
    return element("td", text, *more, class_="number", data_value=value)


def _small(*children: str) -> Markup:
    return element("small", *children)


def _product_cell(entry: Entry) -> Markup:
    names = f"{entry.suite}: {entry.name}" + (f" ({entry.variant})" if entry.variant else "")
    return element("th", breakable(entry.shape), _small(names), scope="row", title=entry.why)


def _ratio_cell(entry: Entry) -> Markup:
    if not entry.opponents:
        return _number_cell(None, "")
    ratios = [(other, entry.ratio(other), entry.verdict(other)) for other in entry.opponents]
    lines = [element("span", verdict(ratio, change), _small(f"of {other}")) for other, ratio, change in ratios]
    return _number_cell(ratios[0][1], "", *lines)


def _ours_cell(entry: Entry) -> Markup:
    ours = entry.ours
    lower, upper = ours.quartiles
    return _number_cell(ours.median, _time(ours.median), _small(f"{_time(lower)} to {_time(upper)}"))


def _theirs_cell(entry: Entry) -> Markup:
    """The times of the opponents, and of those that cannot be compared."""
    lines = []
    for name, each in entry.competitors.items():
        if name not in (OURS, AGAIN):
            who = name if name in entry.opponents else f"{name}: {each.precision}, not compared"
            lines.append(element("span", _time(each.median), _small(who)))
    if not lines:
        return _number_cell(None, "")
    median = entry.competitors[entry.opponents[0]].median if entry.opponents else None
    return element("td", *lines, class_="number", data_value=median)


def _error_cell(entry: Entry) -> Markup:
    theirs = ((other, _error(entry.competitors[other])) for other in entry.opponents)
    return _number_cell(entry.ours.norm, _error(entry.ours), *(_small(f"{name} {error}") for name, error in theirs))


def _error(competitor: Competitor) -> str:
    if competitor.norm is None:
        return "none"
    comp = "" if competitor.comp is None else f"{competitor.comp:.1e} / "
    return f"{comp}{competitor.norm:.1e}"


def _roofline_cell(entry: Entry) -> Markup:
    share = entry.roofline_share
    return _number_cell(share, "" if share is None else f"{share:.0%}", _small(entry.bound) if entry.bound else "")


def _graph_cell(entry: Entry) -> Markup:
    ours = entry.ours.graph_ms
    others = [
        _small(f"{other} {_time(graph_ms)}")
        for other in entry.opponents
        if (graph_ms := entry.competitors[other].graph_ms) is not None
    ]
    return _number_cell(ours, "" if ours is None else _time(ours), *others)


def _clocks_cell(entry: Entry) -> Markup:
    state = entry.state
    if state is None:
        return _number_cell(None, "")
    before, after = state.sm_mhz
    clocks = f"{after} MHz" if before == after else f"{before} to {after} MHz"
    around = _small(f"{state.power_watts:.0f} W, {state.temperature_celsius} °C")
    held = element("span", f"held down: {', '.join(state.throttled)}", class_="throttled") if state.throttled else ""
    return _number_cell(after, clocks, around, held)


def _time(ms: float) -> str:
    """
    >>> _time(0.0053), _time(0.1742), _time(12.448)
    ('5.30 µs', '174.2 µs', '12.45 ms')
    """
    if ms >= 1:
        return f"{ms:#.4g} ms"
    return f"{ms * 1e3:.{2 if ms < 0.1 else 1}f} µs"


def _bytes(count: int | None) -> str:
    """
    >>> _bytes(0), _bytes(268435456)
    ('0', '256 MiB')
    """
    return f"{count / 2**20:.3g} MiB" if count else "0"


_COLUMNS: Final = (
    _Column("product", _product_cell, is_number=False),
    _Column("ratio", _ratio_cell, "an opponent's time divided by ours, in the same precision class"),
    _Column("ours", _ours_cell, "the median of our times, and their quartiles"),
    _Column("theirs", _theirs_cell, "the medians of the others' times"),
    _Column("error", _error_cell, "comp / norm against float64, ours and theirs"),
    _Column("type", lambda entry: element("td", entry.kind), is_number=False),
    _Column("plan", lambda entry: element("td", entry.plan), is_number=False),
    _Column("roofline", _roofline_cell, "the share of what the GPU could do, and what bounds it"),
    _Column("TFLOP/s", lambda entry: _number_cell(entry.tflops, f"{entry.tflops:.4g}")),
    _Column("GB/s", lambda entry: _number_cell(entry.gigabytes_per_second, f"{entry.gigabytes_per_second:.4g}")),
    _Column("in a graph", _graph_cell, "the time of one of many in a CUDA graph, ours and the others'"),
    _Column(
        "noise",
        lambda entry: _number_cell(entry.noise, f"{math.expm1(entry.noise):.1%}"),
        "how far apart two times of one thing are in this entry (A/A), at least 1%",
    ),
    _Column("workspace", lambda entry: _number_cell(entry.workspace_bytes, _bytes(entry.workspace_bytes))),
    _Column("clocks", _clocks_cell, "of the SMs before and after, and why they were held down if they were"),
)
