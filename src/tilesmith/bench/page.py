"""A run as one HTML page that needs nothing else: no network, and no script but for the filter of its table."""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from string import Template
from typing import Final

from tilesmith.bench import page_plots, svg
from tilesmith.bench.markup import Markup, element, joined
from tilesmith.bench.page_table import SIGNS, table
from tilesmith.bench.results import Change, Environment, Results

_BLANK: Final = "\u00a0"  # keeps its line, where nothing is to be shown


def page(results: Results) -> str:
    """The page, ready to be written to a file."""
    style, script = _template("page.css"), _template("page.js")
    environment = results.environment
    return Template(_template("page.html")).substitute(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        gpu=joined(environment.gpu),
        date=joined(environment.date),
        headline=joined(*(_count_tile(results, other) for other in results.opponents)),
        unfinished=_unfinished(results),
        summary=_summary(results),
        bars=page_plots.bars(results),
        ratios=page_plots.ratios(results),
        roofline=page_plots.roofline(results),
        errors=page_plots.errors(results),
        suites=_options(entry.suite for entry in results.entries),
        dtypes=_options(entry.dtype for entry in results.entries),
        table=table(results),
        environment=_environment(environment),
        command=joined(environment.command),
    )


def _template(name: str) -> str:
    return (resources.files("tilesmith.bench") / "templates" / name).read_text()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _count_tile(results: Results, other: str) -> Markup:
    """The counts against an opponent, over all suites."""
    counts: Counter[Change] = Counter()
    for suite in results.suites:
        counts += results.verdicts(suite, other)
    numbers = [element("li", element("b", str(counts[kind])), f" {kind}", class_=f"count {kind}") for kind in SIGNS]
    title, shares = element("h3", f"against {other}"), svg.split((kind, counts[kind]) for kind in SIGNS)
    return element("div", title, element("ul", *numbers, class_="counts"), shares, class_="tile")


def _unfinished(results: Results) -> Markup:
    if not results.unfinished:
        return Markup()
    missed = element("ul", *(element("li", each) for each in results.unfinished))
    return element("div", element("strong", "Not measured"), missed, class_="notice", role="note")


def _summary(results: Results) -> Markup:
    headings = ("suite", *(f"against {other}" for other in results.opponents))
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = []
    for suite in results.suites:
        cells = (_summary_cell(results, suite, other) for other in results.opponents)
        body.append(element("tr", element("th", suite, scope="row"), *cells))
    return element("table", element("thead", head), element("tbody", *body), class_="summary")


def _summary_cell(results: Results, suite: str, other: str) -> Markup:
    mean = results.mean_ratio(suite, other)
    if mean is None:
        return element("td", "none", class_="none")
    counts = results.verdicts(suite, other)
    tally = []
    for kind, sign in SIGNS.items():
        shown = f"{sign} {counts[kind]}" if counts[kind] else _BLANK
        tally.append(element("span", shown, class_=kind, title=f"{counts[kind]} {kind}"))
    return element("td", element("b", f"{mean:.3f}"), element("span", *tally, class_="tally"))


def _environment(environment: Environment) -> Markup:
    facts = {**environment.facts, "L2 before each time": environment.l2, "date": environment.date}
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts.items())
    return element("dl", *pairs)


def _options(values: Iterable[str]) -> Markup:
    return joined(*(element("option", value, value=value) for value in dict.fromkeys(values)))
