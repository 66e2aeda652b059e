"""The table of the page: a row for each entry, all that was measured of it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.results import OURS, Change, Entry, Results

SIGNS: Final[dict[Change, str]] = {"faster": "▲", "same": "=", "slower": "▼"}


def row_id(index: int) -> str:
    """What a link to an entry's row has after its #."""
    return f"entry-{index}"


def breakable(shape: str) -> Markup:
    """A shape that may go on in the next line between its sizes, not within one.

    >>> breakable("16x32")
    '16x<wbr>32'
    """
    return Markup(element("wbr").join(f"{joined(size)}x" for size in shape.split("x")).removesuffix("x"))


def verdict(ratio: float, change: Change) -> Markup:
    return element("span", f"{ratio:.3f} ", element("abbr", SIGNS[change], title=change), class_=f"value {change}")


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Entry], Markup]
    note: str = ""  # what the heading means
    is_number: bool = True


def table(results: Results) -> Markup:
    columns = list(_columns(results.opponents))
    head = (
        element("th", each.heading, scope="col", title=each.note or None, class_="number" if each.is_number else None)
        for each in columns
    )
    rows = (
        element(
            "tr", *(each.cell(entry) for each in columns), id=row_id(i), data_suite=entry.suite, data_dtype=entry.dtype
        )
        for i, entry in enumerate(results.entries)
    )
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows), id="entries")


def _columns(opponents: tuple[str, ...]) -> Iterable[_Column]:
    yield _Column("product", _product_cell, is_number=False)
    yield _Column("type", lambda entry: element("td", entry.kind), is_number=False)
    yield _Column("plan", lambda entry: element("td", entry.plan), is_number=False)
    yield _Column("time", _time_cell, "median of ours, and the quartiles")
    yield _Column("TFLOP/s", lambda entry: _number_cell(entry.tflops, f"{entry.tflops:.4g}"))
    yield _Column("GB/s", lambda entry: _number_cell(entry.gigabytes_per_second, f"{entry.gigabytes_per_second:.4g}"))
    yield _Column("roofline", _roofline_cell, "the share of what the GPU could do, and what bounds it")
    for other in opponents:
        yield _Column(f"{other} by ours", partial(_ratio_cell, other), f"the time of {other} divided by ours")
    yield _Column("noise", _noise_cell, "how far apart two times of one thing are in this entry (A/A), at least 1%")
    for name in (OURS, *opponents):
        yield _Column(f"error, {name}", partial(_error_cell, name), "comp / norm, against float64")
    yield _Column("in a graph", _graph_cell, "the time of one of many in a CUDA graph, ours and the others'")
    yield _Column("workspace", lambda entry: _number_cell(entry.workspace_bytes, _bytes(entry.workspace_bytes)))
    yield _Column("clocks", _clocks_cell, "of the SMs before and after, and why they were held down if they were")


def _number_cell(value: float | None, text: str, *more: str) -> Markup:
    """A cell that is sorted by its value; one without comes last."""
    if value is None or not math.isfinite(value):
        return element("td", element("span", "none", class_="none"), class_="number")
    return element("td", text, *more, class_="number", data_value=value)


def _product_cell(entry: Entry) -> Markup:
    names = f"{entry.suite}: {entry.name}" + (f" ({entry.variant})" if entry.variant else "")
    return element("th", breakable(entry.shape), element("small", names), scope="row", title=entry.why)


def _time_cell(entry: Entry) -> Markup:
    ours = entry.ours
    lower, upper = ours.quartiles
    return _number_cell(ours.median, _time(ours.median), element("small", f"{_time(lower)} to {_time(upper)}"))


def _roofline_cell(entry: Entry) -> Markup:
    bound = element("small", entry.bound) if entry.bound else ""
    share = entry.roofline_share
    return _number_cell(share, "" if share is None else f"{share:.0%}", bound)


def _ratio_cell(other: str, entry: Entry) -> Markup:
    if other not in entry.competitors:
        return _number_cell(None, "")
    ratio, precision = entry.ratio(other), entry.competitors[other].precision
    against = element("small", f"in {precision}") if precision != entry.ours.precision else ""
    return _number_cell(ratio, "", verdict(ratio, entry.verdict(other)), against)


def _noise_cell(entry: Entry) -> Markup:
    return _number_cell(entry.noise, f"{math.expm1(entry.noise):.1%}")


def _error_cell(name: str, entry: Entry) -> Markup:
    competitor = entry.competitors.get(name)
    if competitor is None or competitor.norm is None or competitor.comp is None:
        return _number_cell(None, "")
    return _number_cell(competitor.norm, f"{competitor.comp:.1e} / {competitor.norm:.1e}")


def _graph_cell(entry: Entry) -> Markup:
    ours = entry.ours.graph_ms
    others = [
        element("small", f"{other} {_time(graph_ms)}")
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
    around = element("small", f"{state.power_watts:.0f} W, {state.temperature_celsius} °C")
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
