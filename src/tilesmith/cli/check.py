"""`tilesmith check`: whether a candidate for a problem of KernelBench's kind is right, how exact, and how fast."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from tilesmith.cli import UnusableError, json_option, print_json, progress_line
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.sandbox import Limits
from tilesmith.kernelbench.check.verdict import Mode, Verdict
from tilesmith.kernelbench.check_all import CheckAll, summary
from tilesmith.kernelbench.problem_file import ProblemError, problems_in

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
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
    type=click.FloatRange(min=0, min_open=True),
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
    mode: Mode,
    accuracy: Accuracy,
    timeout: float,
    sanitize: bool,
    as_json: bool,
) -> None:
    """Judge a candidate for a KernelBench problem: right, how exact, how fast, and by which tricks.

    PROBLEM has Model, get_inputs and get_init_inputs; CANDIDATE has ModelNew. The candidate's code is run, in a
    process of its own. Exits with 1 if it is wrong or does not build, and with 2 if it could not be judged.
    """
    _check_usage(problem, candidate, every=every, modules=modules, sanitize=sanitize)
    if not torch.cuda.is_available():
        raise UnusableError("check runs candidates on an NVIDIA GPU, and torch finds none here")
    if every:
        _check_all(problem, modules, mode, accuracy, Limits(seconds=timeout), as_json=as_json)
        return
    assert problem is not None and candidate is not None
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


def _check_all(
    folder: Path | None, modules: Path | None, mode: Mode, accuracy: Accuracy, limits: Limits, *, as_json: bool
) -> None:
    problems = problems_in(folder)
    if not problems:
        raise UnusableError(f"{folder} has no problem files")
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(temporary) if modules is None else modules
        where.mkdir(parents=True, exist_ok=True)
        here = devices.installed(torch.cuda.current_device())
        judge_all = CheckAll(here, where, mode, accuracy, limits)
        found = judge_all(problems, (lambda each: None) if as_json else (lambda each: click.echo(str(each))))
        judged = [(each, each.verdict) for each in found if each.verdict is not None]
        reports = [_report(each.problem, where / each.problem, verdict) for each, verdict in judged]
    if as_json:
        refused = {each.problem: each.refused for each in found if each.verdict is None}
        print_json({"reports": reports, "refused": refused})
    else:
        click.echo("\n".join(summary(found)))
    if not all(each.right for each in found):
        raise click.exceptions.Exit(1)


def _report(problem: str | Path, candidate: Path, verdict: Verdict) -> dict[str, Any]:
    """What `--json` prints of a candidate: the verdict, with what follows from it near the beginning."""
    first = {"mode": verdict.mode, "right": verdict.right, "precision": verdict.precision}
    return {"problem": str(problem), "candidate": str(candidate), **first, **asdict(verdict)}
