"""Whether this process is the command line."""

import os
import sys


def is_command_line() -> bool:
    """Whether this process was started as `tilesmith ...` or `python -m tilesmith ...`. Not in what it starts.

    >>> is_command_line()
    False
    """
    arguments: list[str] = getattr(sys, "argv", [])  # a program that embeds Python may have none
    started = sys.orig_argv[-len(arguments) :][0] if 0 < len(arguments) <= len(sys.orig_argv) else ""
    if arguments[:1] == ["-m"]:  # as long as Python looks for the module
        return started == "tilesmith"
    return arguments[:1] == [started] and os.path.basename(started) == "tilesmith"
