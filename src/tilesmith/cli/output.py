"""How commands print."""

import json
import os
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance
    from rich.console import Console
    from rich.progress import Progress

_WIDTH_OF_A_PIPE: Final = 120  # columns, where there is no terminal to ask
_MIN_WIDTH: Final = 40
_TRAILING: Final = re.compile(r"[ \t]+(?=\n|$)")


def print_json(value: "DataclassInstance | Mapping[str, Any] | Sequence[Any]") -> None:
    """A dataclass, or what JSON can hold, as JSON on stdout."""
    from tilesmith.bench.results import finite

    plain = asdict(value) if is_dataclass(value) else value
    click.echo(json.dumps(finite(plain), indent=2, allow_nan=False))


def format_kernels(count: int) -> str:
    """
    >>> format_kernels(1), format_kernels(2)
    ('1 kernel', '2 kernels')
    """
    return "1 kernel" if count == 1 else f"{count} kernels"


def format_bytes(count: int) -> str:
    """A number of bytes as a person reads it.

    >>> format_bytes(512), format_bytes(16640), format_bytes(60 * 2**20)
    ('512 B', '16.2 KiB', '60 MiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{round(size, 1):g} {unit}"


def columns() -> int | None:
    """The width of what is printed to; None where that is no terminal, and nobody says."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None


class _Unpadded:
    """A stream without the blanks that a table has at the ends of its lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_TRAILING.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> "Console":
    """Where tables go. Text is printed as it is: messages may hold brackets."""
    from rich.console import Console

    options: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
    if sys.stdout.isatty():
        return Console(**options)
    width = max(columns() or _WIDTH_OF_A_PIPE, _MIN_WIDTH)
    return Console(file=_Unpadded(sys.stdout), width=width, **options)  # type: ignore[arg-type]


@contextmanager
def progress_line(what: str) -> "Iterator[Callable[[str], None]]":
    """A line on a terminal's stderr that says what is being done; call what comes with the next step."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)) as status:
        yield lambda step: status.update(escape(step))


def progress_bar(console: "Console | None" = None, *, quiet: bool = False) -> "Progress":
    """One with the time left, on stderr if nothing else is said."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    where = console or Console(stderr=True)
    quiet = quiet or not where.is_terminal  # to which it would write an empty line
    return Progress(*shown, TimeRemainingColumn(), console=where, transient=True, disable=quiet)
