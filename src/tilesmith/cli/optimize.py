"""`tilesmith optimize`: from a problem file to a module with our kernels."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, UnusableError, json_option, print_json
from tilesmith.cli.options import OutputFile, gpu_option

if TYPE_CHECKING:
    from tilesmith.core.accuracy import Accuracy
    from tilesmith.core.device import Device


@click.command(cls=Command)
@click.argument("problem", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--output", required=True, type=OutputFile(or_folder=True), help="The new file; with --all, a folder."
)
@click.option("--all", "every", is_flag=True, help="Write a module for each problem of the folder PROBLEM.")
@click.option("--html", type=OutputFile(), help="With --all: a page with the table.")
@click.option("--accuracy", type=click.Choice(["fp32", "tf32"]), default="fp32", show_default=True)
@gpu_option("If not given, the GPU here, or where there is none an H200.")
@click.option("--standalone", is_flag=True, help="Let the new file compare and time itself when it is run.")
@click.option("--no-check", is_flag=True, help="Do not check what was written.")
@json_option
def optimize(
    problem: Path,
    output: Path,
    every: bool,
    html: Path | None,
    accuracy: "Accuracy",
    gpu: "Device | None",
    standalone: bool,
    no_check: bool,
    as_json: bool,
) -> None:
    """Write a module with custom CUDA kernels for the model in a problem file.

    PROBLEM is a Python file with `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`. The new file has
    `class ModelNew` with the same interface, and needs nothing but torch and nvcc.
    """
    _check_usage(problem, output, every=every, html=html, standalone=standalone)
    from tilesmith.cli import optimize_run
    from tilesmith.kernelbench.problem_file import ProblemError

    if every:
        rows = optimize_run.optimize_all(problem, output, gpu, accuracy, no_check=no_check, quiet=as_json)
        if html is not None:
            html.write_text(optimize_run.page_of(problem, rows))
        if as_json:
            print_json([asdict(row) for row in rows])
        else:
            optimize_run.report_all(rows)
        if any(row.is_wrong for row in rows):
            raise click.exceptions.Exit(1)
        return
    try:
        result = optimize_run.optimized(problem, output, gpu, accuracy, standalone=standalone, no_check=no_check)
    except ProblemError as error:
        raise UnusableError(str(error)) from None
    if as_json:
        print_json(result)
    else:
        optimize_run.report(result)
    if result.verdict is not None and not result.verdict.right:
        raise click.exceptions.Exit(1)


def _check_usage(problem: Path, output: Path, *, every: bool, html: Path | None, standalone: bool) -> None:
    if every:
        if not problem.is_dir() or standalone or output.is_file():
            raise click.UsageError("--all takes a folder of problems, --output a folder, and no --standalone")
        if output.is_dir() and output.samefile(problem):
            raise UnusableError(f"{output} has the problems themselves, which are not overwritten")
    elif problem.is_dir() or html is not None:
        raise click.UsageError("a folder of problems needs --all, and so does --html")
    elif output.is_dir():
        raise click.UsageError(f"{output} is a folder: name the new file")
    elif output.exists() and output.samefile(problem):
        raise UnusableError(f"{output} is the problem itself, which is not overwritten")
