"""What `tilesmith check` does: it judges one candidate, or modules for a folder of problems."""

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch

from tilesmith.cli import UnusableError, print_json, progress_line
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.sandbox import Limits, end_all
from tilesmith.kernelbench.check.verdict import Mode, Verdict
from tilesmith.kernelbench.check_all import CheckAll, summary
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile, problems_in


def check(
    problem: Path, candidate: Path, mode: Mode, accuracy: Accuracy, limits: Limits, *, sanitize: bool, as_json: bool
) -> None:
    """Judges one candidate, and ends the command with exit code 1 if it is wrong."""
    try:
        ProblemFile.read(problem)  # what is wrong with it needs no GPU to be said
        _check_gpu()
        with ended_by_signals(), progress_line("starting") as say, Judge(problem, limits=limits, say=say) as judge:
            verdict = judge(candidate, mode=mode, accuracy=accuracy, sanitize=sanitize)
    except ProblemError as error:
        raise UnusableError(str(error)) from error
    if as_json:
        print_json(_report(problem, candidate, verdict))
    else:
        click.echo(verdict.describe())
    if not verdict.right:
        raise click.exceptions.Exit(1)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the processes of candidates first, and remove what was written."""

    def end(number: int, frame: FrameType | None) -> None:
        end_all()
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise UnusableError("check runs candidates on an NVIDIA GPU, and torch finds none here")


def check_all(
    folder: Path | None, modules: Path | None, mode: Mode, accuracy: Accuracy, limits: Limits, *, as_json: bool
) -> None:
    """Judges modules for the problems of a folder, and ends the command with exit code 1 if one is wrong."""
    problems = problems_in(folder)
    if not problems:
        raise UnusableError(f"{folder} has no problem files")
    _check_gpu()
    with ended_by_signals(), tempfile.TemporaryDirectory() as temporary:
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
