"""The parts of written modules that are the same in all of them."""

import re
from collections.abc import Mapping
from importlib import resources


def template(name: str) -> str:
    """The text of a file in this folder."""
    return (resources.files(__name__) / name).read_text()


def filled(text: str, values: Mapping[str, object]) -> str:
    """A template with values in the place of their names.

    >>> filled("@count@ plans", {"count": 3})
    '3 plans'
    """
    return re.sub("@(" + "|".join(values) + ")@", lambda found: str(values[found[1]]), text)
