"""`tilesmith doctor`: what this machine lacks for the full speed, and the command that mends each."""

from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, console, json_option, print_json

if TYPE_CHECKING:
    from tilesmith.cli.diagnosis import Check


@click.command(cls=Command)
@json_option
def doctor(as_json: bool) -> None:
    """Say what this machine lacks for the full speed, and the command that mends it.

    Exits with 1 if something is missing.
    """
    from tilesmith.cli import diagnosis

    checks = diagnosis.checks()
    well = all(each.found is not None for each in checks)
    if as_json:
        print_json({"well": well, "checks": [each.as_json() for each in checks]})
    else:
        _print(checks)
        missing = sum(each.found is None for each in checks)
        click.echo("\nAll is well." if well else f"\n{missing} of {len(checks)} are missing.")
    if not well:
        raise click.exceptions.Exit(1)


def _print(checks: "tuple[Check, ...]") -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for each in checks:
        if each.found is not None:
            table.add_row("ok", each.name, each.found)
        else:
            table.add_row("missing", each.name, "\n".join(filter(None, (each.missing, each.mend))), style="yellow")
    console().print(table)
