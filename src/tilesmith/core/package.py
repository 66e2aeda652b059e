"""What others call the package. Nothing else that multiplies says so: a copy of it may have another name, and then
other operators."""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

NAMESPACE: Final = "tilesmith"  # of the operators


def files() -> Traversable:
    """The package's folder."""
    return resources.files(__name__.removesuffix(".core.package"))
