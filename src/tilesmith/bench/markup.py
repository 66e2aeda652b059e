"""HTML and SVG whose text cannot be taken for markup: all of it is escaped, except for what was made here."""

from html import escape
from typing import Final

_WITHOUT_END: Final = {"br", "meta", "wbr"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | bool | None) -> Markup:
    """An element. Children that are no Markup are text. An attribute of None or False is left out, one of True has no
    value, and underscores in a name stand for hyphens, but for one at its end.

    >>> element("td", "a < b", element("b", "c"), class_="number", data_value=0.5, hidden=True)
    '<td class="number" data-value="0.5" hidden>a &lt; b<b>c</b></td>'
    """
    written = "".join(
        f" {_name(name)}" if value is True else f' {_name(name)}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _WITHOUT_END:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*parts: str) -> Markup:
    """Markup and text one after the other.

    >>> joined("a & b", element("br"))
    'a &amp; b<br>'
    """
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _name(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
