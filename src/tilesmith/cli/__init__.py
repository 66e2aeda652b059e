"""The command line: one file per command, imported when the command is called. Files that a command needs to be parsed,
or to show its help, import no torch; what it does is imported when it is run."""

from typing import Final

import click

from tilesmith.cli.group import INTERRUPTED, Command, Group, UnusableError
from tilesmith.cli.output import columns, console, format_bytes, format_kernels, print_json, progress_line
from tilesmith.version import VERSION

__all__ = [
    "INTERRUPTED",
    "Command",
    "UnusableError",
    "columns",
    "console",
    "format_bytes",
    "format_kernels",
    "json_option",
    "main",
    "print_json",
    "progress_line",
]

# The commands in the order of `--help`. Each is the click command of the same name in its module here.
_COMMANDS: Final[dict[str, str]] = {
    "demo": "Multiply the five reference products, or where there is no GPU small ones in the emulator.",
    "bench": "Time products against torch, check them, and show what came out.",
    "tune": "Find the fastest plans for products on this GPU, and keep them.",
    "optimize": "Write a module with custom CUDA kernels for the model in a problem file.",
    "check": "Judge a candidate for a KernelBench problem: right, how exact, how fast, and by which tricks.",
    "explain": "Show how a product would be multiplied on a GPU, and why so.",
    "build": "Compile all kernels for a GPU ahead, into one archive.",
    "doctor": "Say what this machine lacks for the full speed, and the command that mends it.",
    "info": "Show versions, GPUs and the kernel cache, and what is missing.",
    "cache": "List or remove the compiled kernels on disk.",
    "completion": "Print a script by which a shell completes commands, options and values.",
}


@click.group(cls=Group, summaries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="tilesmith")
def main() -> None:
    """Matrix products on NVIDIA GPUs from PyTorch, with kernels compiled at run time.

    With --json, a command prints JSON and nothing else, also of an error. Exit codes: 1 if a result is wrong, slower or
    missing, 2 if a command cannot do what it was asked for, 130 after Ctrl-C.
    """


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
