"""`tilesmith optimize`: from a problem file to a module with our kernels."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, UnusableError, json_option, print_json
from tilesmith.cli.options import OutputFile, gpu_option

if TYPE_CHECKING:
    from tilesmith.core.accuracy import Accuracy
    from tilesmith.core.device import Device


@click.command(cls=Command)
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=OutputFile(), help="The new file.")
@click.option("--accuracy", type=click.Choice(["fp32", "tf32"]), default="fp32", show_default=True)
@gpu_option("If not given, the GPU here, or where there is none an H200.")
@click.option("--standalone", is_flag=True, help="Let the new file compare and time itself when it is run.")
@click.option("--no-check", is_flag=True, help="Do not check the new file.")
@json_option
def optimize(
    problem: Path,
    output: Path,
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
    if output.exists() and output.samefile(problem):
        raise UnusableError(f"{output} is the problem itself, which is not overwritten")
    from tilesmith.cli import optimize_run
    from tilesmith.kernelbench.problem_file import ProblemError

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
