"""`tilesmith cache`: the compiled kernels on disk."""

from datetime import datetime

import click
from rich.table import Table

from tilesmith.cli import console, format_bytes, format_kernels, json_option, print_json
from tilesmith.core import cache_dir as user_files
from tilesmith.runtime import cache as cubins


@click.group()
def cache() -> None:
    """List or remove the compiled kernels on disk."""


@cache.command()
@json_option
def ls(as_json: bool) -> None:
    """List the compiled kernels, the last used first."""
    entries = sorted(cubins.entries(), key=lambda entry: entry.used, reverse=True)
    rows = [(entry.path.stem, entry.size, datetime.fromtimestamp(entry.used).astimezone()) for entry in entries]
    directory, total = str(user_files.directory()), sum(entry.size for entry in entries)
    if as_json:
        kept = [{"key": key, "bytes": size, "used": used.isoformat(timespec="seconds")} for key, size, used in rows]
        print_json({"directory": directory, "bytes": total, "entries": kept})
        return
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("key", no_wrap=True)
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("last used", no_wrap=True)
        for key, size, used in rows:
            table.add_row(key[:12], format_bytes(size), f"{used:%Y-%m-%d %H:%M:%S}")
        console().print(table)
    click.echo(f"{format_kernels(len(rows))}, {format_bytes(total)}, in {directory}")


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove all compiled kernels. They are compiled again when they are needed.

    Exits with 1 if some could not be removed.
    """
    removed = cubins.clear()
    directory, left = str(user_files.directory()), len(list(cubins.entries()))
    if as_json:
        print_json({"directory": directory, "removed": removed, "left": left})
    else:
        click.echo(f"Removed {format_kernels(removed)} from {directory}.")
        if left:
            click.echo(f"{format_kernels(left)} could not be removed: check who owns the directory.", err=True)
    if left:
        raise click.exceptions.Exit(1)
