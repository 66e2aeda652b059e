"""Recorded runs as one page of Markdown: a section for each run, in it a table for each suite and sort of product."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from tilesmith.bench.groups import by_suite, comparisons
from tilesmith.bench.results import OURS, TORCH, Entry, Results, opponents

_MAX_ROWS: Final = 60  # of a table; of a longer one the least ratios are shown, and how many there are of each size
_SHOWN_ROWS: Final = 20
_WIDTH: Final = 120  # columns of text
_EDGES: Final = (0.0, 0.87, 0.95, 1.0, 1.05, 1.5, 2.0, 4.0, float("inf"))

_INTRODUCTION: Final = """\
# Results

Written by `tilesmith bench --from RUN.json ... --markdown FILE`, and not by hand. The recorded runs of this project are
in `docs/results`. `docs/bench.md` says how times and errors are taken, and `docs/notes` what was tried and learnt.

A ratio is the opponent's time divided by ours, so more is better. An error is *comp* / *norm*, against float64, or
*norm* alone. Times are medians in us."""


def markdown(runs: Iterable[Results]) -> str:
    """The page, ready to be written to a file."""
    return "\n\n".join([_INTRODUCTION, *(part for run in runs for part in _run(run))]) + "\n"


def _run(run: Results) -> Iterable[str]:
    yield f"## {', '.join(run.suites) or 'nothing'} ({run.environment.date})"
    facts = (f"- {name}: {value}" for name, value in _facts(run).items() if value)
    yield "\n".join(textwrap.fill(fact, _WIDTH, subsequent_indent="  ", break_long_words=False) for fact in facts)
    for (suite, sort), entries in by_suite(run.entries).items():
        yield f"### {suite}, {sort}"
        yield from _summary(entries)
        yield _table(entries)
    if run.unfinished:
        yield "\n".join(["Not measured:", "", *(f"- {each}" for each in run.unfinished)])


def _facts(run: Results) -> dict[str, str]:
    environment = run.environment
    return {
        "card": environment.gpu,
        "driver": environment.driver or "not recorded",
        "versions": ", ".join(f"{name} {version}" for name, version in environment.versions.items()),
        "host": environment.host or "not recorded",
        "commit": environment.commit or "not recorded",
        "command": f"`{environment.command}`",
        "note": environment.note,
    }


def _summary(entries: Sequence[Entry]) -> Iterable[str]:
    """The mean against each opponent, and for calls by the wall clock how many are too slow."""
    lines = []
    compared = list(comparisons(entries))
    for each in compared:
        count = f"{len(each.entries)} product{'s' * (len(each.entries) != 1)}"
        least = min(each.ratios)
        lines.append(f"Against {each.other}: geometric mean **{each.mean:.3f}**, least {least:.3f}, of {count}.")
    calls = [entry for entry in entries if entry.clock == "wall" and TORCH in entry.opponents]
    if calls:
        behind = sum(entry.is_behind for entry in calls)
        lines.append(f"By the wall clock; slower than torch by more than 5% above 50 us or 15% below: {behind}.")
    if lines:
        yield "\n".join(lines)
    if len(entries) > _MAX_ROWS:
        yield from (_histogram(each.ratios, each.other) for each in compared)
        yield f"The {_SHOWN_ROWS} least ratios:"


def _histogram(ratios: Sequence[float], other: str) -> str:
    rows = [
        (f"{low:.2f} to {high:.2f}", str(sum(low <= ratio < high for ratio in ratios)))
        for low, high in pairwise(_EDGES)
    ]
    return _rows([(f"{other} by ours", "products"), *rows])


def _table(entries: Sequence[Entry]) -> str:
    others = opponents(entries)
    if len(entries) > _MAX_ROWS and others:
        first = others[0]
        entries = sorted(entries, key=lambda entry: entry.ratio(first) if first in entry.opponents else 0.0)
        entries = entries[:_SHOWN_ROWS]
    everyone = (OURS, *others)

    def of_all(field: str, entry: Entry) -> str:
        return ", ".join(_us(getattr(entry.competitors[name], field)) for name in everyone if name in entry.competitors)

    columns: list[tuple[str, Callable[[Entry], str]]] = [
        ("product", lambda entry: entry.shape + (f", {entry.variant}" if entry.variant else "")),
        ("plan", lambda entry: entry.plan),
        *((f"{name} us", partial(_microseconds, name)) for name in everyone),
        *(("ratio" if len(others) == 1 else f"ratio to {name}", partial(_ratio, name)) for name in others),
        (f"in a graph: {', '.join(everyone)}", partial(of_all, "graph_ms")),
        (f"to issue a call: {', '.join(everyone)}", partial(of_all, "host_ms")),
        *((f"error {name}", partial(_error, name)) for name in everyone),
    ]
    table = [(heading, *(cell(entry) for entry in entries)) for heading, cell in columns]
    filled = [column for column in table if any(cell.strip(", ") for cell in column[1:])]
    return _rows(list(zip(*filled, strict=True)))


def _rows(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _ratio(other: str, entry: Entry) -> str:
    return f"**{entry.ratio(other):.3f}**" if other in entry.opponents else ""


def _microseconds(name: str, entry: Entry) -> str:
    return _us(entry.competitors[name].median) if name in entry.competitors else ""


def _us(ms: float | None) -> str:
    """
    >>> _us(0.00188), _us(0.17302), _us(12.41949), _us(None)
    ('1.88', '173.0', '12419.5', '')
    """
    if ms is None:
        return ""
    return f"{ms * 1e3:.{2 if ms < 0.01 else 1}f}"


def _error(name: str, entry: Entry) -> str:
    competitor = entry.competitors.get(name)
    if competitor is None or competitor.norm is None:
        return ""
    comp = "" if competitor.comp is None else f"{competitor.comp:.1e} / "
    return f"{comp}{competitor.norm:.1e}"
