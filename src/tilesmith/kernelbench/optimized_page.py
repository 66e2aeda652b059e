"""What became of a folder of problems, as one HTML page that needs nothing else."""

from collections.abc import Sequence
from importlib import resources
from typing import Final

from tilesmith.bench.markup import Markup, element
from tilesmith.kernelbench.optimize_all import HEADINGS, Row, shown, summary

_RATIO: Final = HEADINGS.index("ratio")


def page(title: str, rows: Sequence[Row]) -> str:
    """The page, ready to be written to a file."""
    style = (resources.files("tilesmith.bench") / "templates" / "page.css").read_text()
    columns = shown(rows)
    head = element("tr", *(element("th", HEADINGS[i], scope="col") for i in columns))
    table = element("table", element("thead", head), element("tbody", *(_row(row, columns[1:]) for row in rows)))
    body = (
        element(
            "header",
            element("p", "tilesmith optimize", class_="brand"),
            element("h1", title),
            element("p", f"{'; '.join(summary(rows))}.", class_="lead"),
        ),
        element("main", element("section", element("div", table, class_="scroller", tabindex="0", role="region"))),
    )
    meta = element("meta", charset="utf-8"), element("meta", name="viewport", content="width=device-width")
    document = element("html", element("head", *meta, element("title", title), element("style", Markup(style))), *body)
    return f"<!doctype html>\n{document}\n"


def _row(row: Row, columns: Sequence[int]) -> Markup:
    """A line of the table, coloured by what it says."""
    name = element("th", row.problem, scope="row")
    if row.module is None:
        return element("tr", name, element("td", row.cells[1], colspan=len(columns)), class_="slower")
    kinds = {} if row.ratio is None else {_RATIO: "faster" if row.ratio > 1 else "slower"}
    cells = (element("td", row.cells[i], class_=kinds.get(i)) for i in columns)
    return element("tr", name, *cells, class_="slower" if row.is_wrong else None)
