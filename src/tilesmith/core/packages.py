"""The packages of NVIDIA's that Tilesmith needs, and how they are installed."""

from importlib import metadata
from typing import Final

REQUIREMENTS: Final = {"cuda-bindings": ">=13,<14", "nvidia-cuda-nvrtc": ">=13,<14"}


def version(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install_command(*names: str) -> str:
    """The command that brings those of these packages that are not here; or all of them anew, if they are here and of
    no use.

    >>> install_command("cuda-bindings").split()[:2]
    ['pip', 'install']
    """
    missing = [name for name in names if version(name) is None]
    wanted = " ".join(f'"{name}{REQUIREMENTS[name]}"' for name in missing or names)
    return f"pip install {'' if missing else '--force-reinstall '}{wanted}"
