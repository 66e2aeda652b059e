"""The parts of written modules that are the same in all of them."""

from importlib import resources


def template(name: str) -> str:
    """The text of a file in this folder."""
    return (resources.files(__name__) / name).read_text()
