"""`tilesmith check`: whether a candidate for a problem of KernelBench's kind is right, how exact, and how fast."""

from dataclasses import dataclass
from pathlib import Path

import click
import torch

from tilesmith.cli import UnusableError, json_option, print_json, progress_line
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.sandbox import Limits
from tilesmith.kernelbench.check.verdict import Finding, Mode, Speed, Verdict
from tilesmith.kernelbench.problem_file import ProblemError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Report:
    """What `--json` prints."""

    problem: str
    candidate: str
    mode: Mode
    right: bool
    precision: str | None
    findings: tuple[Finding, ...]
    speed: Speed | None
    notes: tuple[str, ...]


@click.command()
@click.argument("problem", type=_FILE)
@click.argument("candidate", type=_FILE)
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
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that the build, and each later step, may take.",
)
@click.option("--sanitize", is_flag=True, help="Also run it once under compute-sanitizer's memcheck.")
@json_option
def check(
    problem: Path, candidate: Path, mode: Mode, accuracy: str, timeout: float, sanitize: bool, as_json: bool
) -> None:
    """Judge a candidate for a KernelBench problem: right, how exact, how fast, and by which tricks.

    PROBLEM has Model, get_inputs and get_init_inputs; CANDIDATE has ModelNew. The candidate's code is run, in a
    process of its own. Exits with 1 if it is wrong or does not build, and with 2 if it could not be judged.
    """
    if not torch.cuda.is_available():
        raise UnusableError("check runs candidates on an NVIDIA GPU, and torch finds none here")
    try:
        with progress_line("starting") as say, Judge(problem, limits=Limits(seconds=timeout), say=say) as judge:
            verdict = judge(candidate, mode=mode, accuracy=accuracy, sanitize=sanitize)
    except ProblemError as error:
        raise UnusableError(str(error)) from error
    if as_json:
        print_json(_report(problem, candidate, verdict))
    else:
        click.echo(verdict.describe())
    if not verdict.right:
        raise click.exceptions.Exit(1)


def _report(problem: Path, candidate: Path, verdict: Verdict) -> Report:
    return Report(
        problem=str(problem),
        candidate=str(candidate),
        mode=verdict.mode,
        right=verdict.right,
        precision=verdict.precision,
        findings=verdict.findings,
        speed=verdict.speed,
        notes=verdict.notes,
    )
