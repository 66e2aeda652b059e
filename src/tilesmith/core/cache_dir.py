"""Where Tilesmith keeps files of the user's."""

import os
from pathlib import Path


def directory() -> Path:
    """`$XDG_CACHE_HOME/tilesmith`, or `~/.cache/tilesmith`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "tilesmith"
