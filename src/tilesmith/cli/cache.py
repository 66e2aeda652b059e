"""`tilesmith cache`: the compiled kernels on disk."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli import Command, console, format_bytes, format_kernels, json_option, print_json

if TYPE_CHECKING:
    from tilesmith.runtime.cache import Entry


@click.group()
def cache() -> None:
    """List or remove the compiled kernels on disk."""


@cache.command(cls=Command)
@json_option
def ls(as_json: bool) -> None:
    """List the compiled kernels, the last used first.

    Those that an earlier version compiled are without a name.
    """
    from tilesmith.core import cache_dir
    from tilesmith.runtime import cache as cubins

    entries = sorted(cubins.entries(), key=lambda entry: entry.used, reverse=True)
    directory, total = str(cache_dir.directory()), sum(entry.size for entry in entries)
    if as_json:
        print_json({"directory": directory, "bytes": total, "entries": [_as_json(entry) for entry in entries]})
        return
    if entries:
        _print(entries)
    click.echo(f"{format_kernels(len(entries))}, {format_bytes(total)}, in {directory}")


def _print(entries: "list[Entry]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("kernel", "tile", "for"):
        table.add_column(heading)
    for heading in ("size", "compiled", "used"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("key", no_wrap=True)
    now = time.time()
    for entry in entries:
        about = entry.about
        runs_on = " ".join(filter(None, (about.arch, "on the CPU" if entry.is_emulated else "")))
        ages = (format_age(now - entry.made), format_age(now - entry.used))
        table.add_row(
            *(about.kernel or "-", about.tile or "-", runs_on or "-", format_bytes(entry.size), *ages),
            entry.path.stem[:12],
        )
    console().print(table)


def _as_json(entry: "Entry") -> dict[str, Any]:
    made, used = (
        datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds") for at in (entry.made, entry.used)
    )
    about = entry.about
    names = {"kernel": about.kernel, "tile": about.tile, "arch": about.arch}
    return {
        "key": entry.path.stem,
        **{name: value or None for name, value in names.items()},
        "emulated": entry.is_emulated,
        "bytes": entry.size,
        "compiled": made,
        "used": used,
    }


def format_age(seconds: float) -> str:
    """How long ago something was.

    >>> format_age(3), format_age(200), format_age(5 * 3600), format_age(40 * 86400)
    ('now', '3 min ago', '5 h ago', '40 days ago')
    """
    for unit, length in (("days", 2 * 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / (86400 if unit == 'days' else length):.0f} {unit} ago"
    return "now"


@cache.command(cls=Command)
@json_option
def clear(as_json: bool) -> None:
    """Remove all compiled kernels. They are compiled again when they are needed.

    Exits with 1 if some could not be removed.
    """
    from tilesmith.core import cache_dir
    from tilesmith.runtime import cache as cubins

    removed = cubins.clear()
    directory, left = str(cache_dir.directory()), len(list(cubins.entries()))
    if as_json:
        print_json({"directory": directory, "removed": removed, "left": left})
    else:
        click.echo(f"Removed {format_kernels(removed)} from {directory}.")
        if left:
            click.echo(f"{format_kernels(left)} could not be removed: check who owns the directory.", err=True)
    if left:
        raise click.exceptions.Exit(1)
