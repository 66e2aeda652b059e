"""Runs as one HTML page that needs nothing else: no network, and no script but for the filter of its table."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from string import Template
from typing import Final

from tilesmith.bench import page_plots, svg
from tilesmith.bench.groups import Comparison, Sort, by_suite, comparisons, gathered
from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.page_rows import SIGNS, described, rows
from tilesmith.bench.page_table import table
from tilesmith.bench.results import Change, Results

_BLANK: Final = "\u00a0"  # keeps its line, where nothing is to be shown
_NAMED: Final = 4  # means in the headline; the tiles have all
_COUNTED: Final[dict[Change, str]] = {"faster": "are faster", "same": "the same", "slower": "slower"}


def page(runs: Sequence[Results]) -> str:
    """The page, ready to be written to a file. The newest runs come first."""
    runs = sorted(runs, key=lambda run: run.environment.date, reverse=True)
    style, script = _template("page.css"), _template("page.js")
    entries = [row.entry for run in rows(runs) for row in run]
    gpus = ", ".join(dict.fromkeys(run.environment.gpu for run in runs))
    first, last = runs[-1].environment.date, runs[0].environment.date
    found = _by_sort(runs)
    return Template(_template("page.html")).substitute(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        gpu=joined(gpus),
        date=joined(first if first == last else f"{first} to {last}"),
        headline=_headline(len(entries), found),
        tiles=joined(*(_tile(sort, each) for sort, each in found)),
        summary=_summary(runs),
        unfinished=_unfinished([missed for run in runs for missed in run.unfinished]),
        bars=page_plots.bars(runs),
        ratios=page_plots.ratios(runs),
        roofline=page_plots.rooflines(runs),
        errors=page_plots.errors(runs),
        suites=_options(entry.suite for entry in entries),
        dtypes=_options(entry.dtype for entry in entries),
        table=table(runs),
        runs=joined(*(_where(i, run) for i, run in enumerate(runs))),
    )


def _template(name: str) -> str:
    return (resources.files("tilesmith.bench") / "templates" / name).read_text()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _by_sort(runs: Sequence[Results]) -> list[tuple[Sort, Comparison]]:
    """What was compared of each sort, in all suites of all runs; the one with the most products first."""
    sorts = gathered((entry for run in runs for entry in run.entries), Sort.of)
    found = [(sort, each) for sort, entries in sorts.items() for each in comparisons(entries)]
    return sorted(found, key=lambda pair: len(pair[1].entries), reverse=True)


def _headline(count: int, found: Sequence[tuple[Sort, Comparison]]) -> Markup:
    """The main result in a sentence, and how many products it is of."""
    if not found:
        return joined(f"{count} products, without anyone to compare them with." if count else "Nothing was measured.")
    first: dict[Sort, Comparison] = {}
    for sort, each in found:
        first.setdefault(sort, each)
    named, other = [], ""
    for sort, each in list(first.items())[:_NAMED]:
        against = "" if each.other == other else f" times as fast as {each.other}"
        named.append(joined(f"{sort} ", element("b", f"{each.mean:.2f}"), against))
        other = each.other
    verdicts = [verdict for each in first.values() for verdict in each.verdicts.elements()]
    *others, last = (f"{verdicts.count(kind)} {words}" for kind, words in _COUNTED.items())
    return joined(
        f"{len(verdicts)} products, each compared within its precision class: ",
        Markup("; ".join(named)),
        f", in the geometric mean. {', '.join(others)} and {last}.",
    )


def _tile(sort: Sort, compared: Comparison) -> Markup:
    """The mean and the counts against an opponent, over all suites."""
    counts = compared.verdicts
    count, least, most = len(compared.entries), min(compared.ratios), max(compared.ratios)
    products = "1 product" if count == 1 else f"{count} products, {least:.2f} to {most:.2f}"
    numbers = [element("li", element("b", str(counts[kind])), f" {kind}", class_=kind) for kind in SIGNS]
    return element(
        "div",
        element("h3", str(sort), " ", element("small", f"against {compared.other}")),
        element("p", element("b", f"{compared.mean:.2f}\u00d7"), f" {products}", class_="mean"),
        element("ul", *numbers, class_="counts"),
        svg.split((kind, counts[kind]) for kind in SIGNS),
        class_="tile",
    )


def _unfinished(missed: Sequence[str]) -> Markup:
    if not missed:
        return Markup()
    listed = element("ul", *(element("li", each) for each in missed))
    return element("div", element("strong", "Not measured"), listed, class_="notice", role="note")


def _summary(runs: Sequence[Results]) -> Markup:
    """A row for each suite and sort of each run, and each opponent."""
    head = element("tr", *(element("th", heading, scope="col") for heading in ("suite", "mean", "products", "run")))
    body = []
    for i, run in enumerate(runs):
        link = element("a", described(run), href=f"#run-{i}")
        for (suite, sort), entries in by_suite(run.entries).items():
            for each in comparisons(entries):
                name = element("th", suite, " ", element("small", f"{sort}, against {each.other}"), scope="row")
                cells = (element("b", f"{each.mean:.3f}"), _tally(each), link)
                body.append(element("tr", name, *(element("td", cell) for cell in cells)))
    return element("table", element("thead", head), element("tbody", *body), class_="summary")


def _tally(compared: Comparison) -> Markup:
    counts = compared.verdicts
    tally = []
    for kind, sign in SIGNS.items():
        shown = f"{sign} {counts[kind]}" if counts[kind] else _BLANK
        tally.append(element("span", shown, class_=kind, title=f"{counts[kind]} {kind}"))
    return element("span", *tally, class_="tally")


def _where(i: int, run: Results) -> Markup:
    """The machine, the programs and the command of a run."""
    environment = run.environment
    facts = {
        **environment.facts,
        "L2 before each time": environment.l2,
        "date": environment.date,
        "commit": environment.commit or "not recorded",
    }
    pairs = (
        element("div", element("dt", name), element("dd", value or "not recorded")) for name, value in facts.items()
    )
    return element(
        "section",
        element("h3", ", ".join(run.suites) or "nothing"),
        element("dl", *pairs),
        element("p", environment.note, class_="note") if environment.note else "",
        element("pre", element("code", environment.command), tabindex="0", aria_label="The command"),
        id=f"run-{i}",
        class_="card",
    )


def _options(values: Iterable[str]) -> Markup:
    return joined(*(element("option", value, value=value) for value in dict.fromkeys(values)))
