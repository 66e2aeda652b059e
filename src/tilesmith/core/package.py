"""The package's folder and the namespace of its operators. They are asked for here alone, so that a copy of the package
may have another name."""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

NAMESPACE: Final = "tilesmith"  # of the operators


def files() -> Traversable:
    """The package's folder."""
    return resources.files(__name__.removesuffix(".core.package"))
