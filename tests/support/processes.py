"""Other processes, as Linux tells of them, and waiting for what they do."""

import time
from collections.abc import Callable
from pathlib import Path


def soon(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it comes true within that time."""
    end = time.monotonic() + seconds
    while not (now := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return now


def is_running(process: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
