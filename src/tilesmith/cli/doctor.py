"""`tilesmith doctor`: what this machine lacks for the full speed, and the command that mends each."""

from textwrap import wrap
from typing import TYPE_CHECKING, Final

import click

from tilesmith.cli import Command, columns, json_option, print_json

if TYPE_CHECKING:
    from tilesmith.cli.diagnosis import Check


_WIDTH: Final = 120
_INDENT: Final = " " * 9


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
    """A command stays in one line, to be copied."""
    for each in checks:
        state, words = ("ok", each.found) if each.found is not None else ("missing", each.missing)
        text = f"{each.name}: {words}"
        width = min(columns() or _WIDTH, _WIDTH)
        color = None if each.found is not None else "yellow"
        for line in wrap(text, width, initial_indent=f"{state:<9}", subsequent_indent=_INDENT):
            click.secho(line, fg=color)
        if each.mend is not None:
            click.echo(f"{_INDENT}{each.mend}")
