"""The command line: one file per command, imported when the command is called."""

import importlib
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from tilesmith import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import DataclassInstance
    from rich.console import Console

# The commands in the order of `--help`. Each is the click command of the same name in its module here.
_COMMANDS: Final[dict[str, str]] = {
    "demo": "Multiply the five reference products, or where there is no GPU small ones in the emulator.",
    "bench": "Time products against torch, check them, and show what came out.",
    "tune": "Find the fastest plans for products on this GPU, and keep them.",
    "optimize": "Write a module with custom CUDA kernels for the model in a problem file.",
    "check": "Judge a candidate for a KernelBench problem: right, how exact, how fast, and by which tricks.",
    "explain": "Show how a product would be multiplied on a GPU, and why so.",
    "build": "Compile all kernels for a GPU ahead, into one archive.",
    "info": "Show versions, GPUs and the kernel cache, and what is missing.",
    "cache": "List or remove the compiled kernels on disk.",
}
_WIDTH_OF_A_PIPE: Final = 120  # columns, where there is no terminal to ask


class _Lazy(click.Group):
    """A group that imports a command when it is called; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"tilesmith.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilesmith")
def main() -> None:
    """Matrix products on NVIDIA GPUs from PyTorch, with kernels compiled at run time."""


class UnusableError(click.ClickException):
    """What a command was given, or where it runs, does not do: exit code 2, like wrong usage."""

    exit_code = 2


INTERRUPTED: Final = 130  # the exit code after Ctrl-C

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def print_json(value: "DataclassInstance | dict[str, Any]") -> None:
    """A dataclass, or what JSON can hold, as JSON on stdout."""
    from tilesmith.bench.results import finite

    plain = value if isinstance(value, dict) else asdict(value)
    click.echo(json.dumps(finite(plain), indent=2, allow_nan=False))


def format_kernels(count: int) -> str:
    """
    >>> format_kernels(1), format_kernels(2)
    ('1 kernel', '2 kernels')
    """
    return "1 kernel" if count == 1 else f"{count} kernels"


def console() -> "Console":
    """Where tables go. Text is printed as it is: messages may hold brackets."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    return Console(width=width, markup=False, highlight=False, emoji=False)


@contextmanager
def progress_line(what: str) -> "Iterator[Callable[[str], None]]":
    """A line on a terminal's stderr that says what is being done; call what comes with the next step."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)) as status:
        yield lambda step: status.update(escape(step))


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
