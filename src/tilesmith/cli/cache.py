"""`tilesmith cache`: the compiled kernels on disk."""

from dataclasses import dataclass
from datetime import datetime

import click
from rich.table import Table

from tilesmith.cli import console, format_bytes, format_kernels, json_option, print_json
from tilesmith.core import cache_dir as user_files
from tilesmith.runtime import cache as cubins


@dataclass(frozen=True, slots=True)
class Kept:
    """One compiled kernel."""

    key: str
    bytes: int
    used: str  # ISO 8601, local time; as exact as the file system keeps it


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in the cache, the last used first."""

    directory: str
    bytes: int
    entries: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """What became of the entries."""

    directory: str
    removed: int
    left: int


@click.group()
def cache() -> None:
    """List or remove the compiled kernels on disk."""


@cache.command()
@json_option
def ls(as_json: bool) -> None:
    """List the compiled kernels, the last used first."""
    listing = collect()
    if as_json:
        print_json(listing)
    else:
        _print(listing)


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove all compiled kernels. They are compiled again when they are needed.

    Exits with 1 if some could not be removed.
    """
    removed = cubins.clear()
    cleared = Cleared(str(user_files.directory()), removed, len(list(cubins.entries())))
    if as_json:
        print_json(cleared)
    else:
        click.echo(f"Removed {format_kernels(cleared.removed)} from {cleared.directory}.")
        if cleared.left:
            click.echo(f"{format_kernels(cleared.left)} could not be removed: check who owns the directory.", err=True)
    if cleared.left:
        raise click.exceptions.Exit(1)


def collect() -> Listing:
    """What is in the cache."""
    entries = sorted(cubins.entries(), key=lambda entry: entry.used, reverse=True)
    return Listing(
        directory=str(user_files.directory()),
        bytes=sum(entry.size for entry in entries),
        entries=tuple(
            Kept(
                key=entry.path.stem,
                bytes=entry.size,
                used=datetime.fromtimestamp(entry.used).astimezone().isoformat(timespec="seconds"),
            )
            for entry in entries
        ),
    )


def _print(listing: Listing) -> None:
    if listing.entries:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("key", no_wrap=True)
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("last used", no_wrap=True)
        for entry in listing.entries:
            table.add_row(
                entry.key[:12], format_bytes(entry.bytes), f"{datetime.fromisoformat(entry.used):%Y-%m-%d %H:%M:%S}"
            )
        console().print(table)
    click.echo(f"{format_kernels(len(listing.entries))}, {format_bytes(listing.bytes)}, in {listing.directory}")
