"""`tilesmith check`: whether a candidate for a problem of KernelBench's kind is right, how exact, and how fast."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tilesmith.cli import Command, json_option
from tilesmith.cli.options import Finite

if TYPE_CHECKING:
    from tilesmith.core.accuracy import Accuracy
    from tilesmith.kernelbench.check.verdict import Mode

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("problem", type=click.Path(exists=True, path_type=Path), required=False)
@click.argument("candidate", type=_FILE, required=False)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Judge modules for all problems of the folder PROBLEM, or of the package. `optimize` writes them.",
)
@click.option(
    "--modules",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --all: where modules are, or are left. One of a problem's name that is there is judged as it is.",
)
@click.option(
    "--mode", type=click.Choice(["strict", "official"]), default="strict", show_default=True, help="How to judge."
)
@click.option(
    "--accuracy",
    type=click.Choice(["fp32", "tf32"]),
    default="fp32",
    show_default=True,
    help="The precision that float32 results must have.",
)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that the build, and each later step, may take.",
)
@click.option("--sanitize", is_flag=True, help="Also run it once under compute-sanitizer's memcheck.")
@json_option
def check(
    problem: Path | None,
    candidate: Path | None,
    every: bool,
    modules: Path | None,
    mode: "Mode",
    accuracy: "Accuracy",
    timeout: float,
    sanitize: bool,
    as_json: bool,
) -> None:
    """Judge a candidate for a KernelBench problem: right, how exact, how fast, and by which tricks.

    PROBLEM has Model, get_inputs and get_init_inputs; CANDIDATE has ModelNew. The candidate's code is run, in a
    process of its own. Exits with 1 if it is wrong or does not build, and with 2 if it could not be judged.
    """
    _check_usage(problem, candidate, every=every, modules=modules, sanitize=sanitize)
    from tilesmith.cli import check_run
    from tilesmith.kernelbench.check.sandbox import Limits

    limits = Limits(seconds=timeout)
    if every:
        check_run.check_all(problem, modules, mode, accuracy, limits, as_json=as_json)
    elif problem is not None and candidate is not None:
        check_run.check(problem, candidate, mode, accuracy, limits, sanitize=sanitize, as_json=as_json)


def _check_usage(
    problem: Path | None, candidate: Path | None, *, every: bool, modules: Path | None, sanitize: bool
) -> None:
    if every:
        if candidate is not None or sanitize or (problem is not None and not problem.is_dir()):
            raise click.UsageError("--all takes one folder of problems, or none, and no --sanitize")
    elif problem is None or candidate is None:
        raise click.UsageError("name a problem and a candidate, or --all")
    elif problem.is_dir() or modules is not None:
        raise click.UsageError("a folder of problems needs --all, and so does --modules")
