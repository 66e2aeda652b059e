"""What `tilesmith optimize` does, and what it says of it."""

from functools import partial
from pathlib import Path

import click

from tilesmith.cli import UnusableError, console, format_bytes, progress_line
from tilesmith.cli.check_run import ended_by_signals
from tilesmith.cli.output import progress_bar
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.kernelbench import optimizing
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.optimize_all import HEADINGS, OptimizeAll, Row, shown, summary
from tilesmith.kernelbench.optimized_page import page
from tilesmith.kernelbench.optimizing import Optimized
from tilesmith.kernelbench.problem_file import problems_in


def optimized(
    problem: Path, output: Path, gpu: Device | None, accuracy: Accuracy, *, standalone: bool, no_check: bool
) -> Optimized:
    """Writes the module, and checks it where there is a GPU of its architecture: then it is that GPU which is planned
    for. If none is given, the one here, or else an H200."""
    with ended_by_signals(), progress_line("reading the problem") as say:
        judge = None if no_check else partial(Judge, say=say)
        return optimizing.optimized(problem, output, _planned_for(gpu), accuracy, standalone=standalone, judge=judge)


def _planned_for(gpu: Device | None) -> Device:
    here = devices.here() or devices.named(devices.STAND_IN)
    return here if gpu is None or gpu.arch == here.arch else gpu


def optimize_all(
    folder: Path,
    output: Path,
    gpu: Device | None,
    accuracy: Accuracy,
    *,
    no_check: bool,
    quiet: bool,
) -> list[Row]:
    """Writes a module for each problem of a folder."""
    problems = problems_in(folder)
    if not problems:
        raise UnusableError(f"{folder} has no problem files")
    output.mkdir(parents=True, exist_ok=True)
    write = OptimizeAll(_planned_for(gpu), output, accuracy, judges=not no_check)
    progress = progress_bar(quiet=quiet)
    with ended_by_signals(), progress:
        task = progress.add_task("Writing", total=len(problems))
        return write(problems, lambda row: progress.advance(task))


def page_of(folder: Path, rows: list[Row]) -> str:
    """What became of a folder, as a page."""
    return page(f"{folder.resolve().name}: {len(rows)} problems", rows)


def report_all(rows: list[Row]) -> None:
    from rich.table import Table

    columns = shown(rows)
    table = Table(*(HEADINGS[i] for i in columns), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(row.cells[i] for i in columns))
    console().print(table)
    click.echo("\n".join(summary(rows)))


def report(result: Optimized) -> None:
    click.echo(f"{result.problem} computes {result.computes}")
    if result.plan is None:
        click.echo("kernels for any GPU from Turing on" if result.multiplies else "no kernels of ours")
        if result.note is not None:
            click.echo(result.note)
    else:
        workspace = f", {format_bytes(result.workspace_bytes)} of workspace" if result.workspace_bytes else ""
        plans = ", ".join(result.plans)
        click.echo(f"planned for {result.gpu} ({result.arch}): {plans}{workspace}")
    click.echo(f"written to {result.output}, sha256 {result.sha256[:16]}")
    if result.verdict is not None:
        click.echo(result.verdict.describe())
    elif result.compiled:
        click.echo(
            f"compiled for {', '.join(result.compiled)}; there is no {result.arch} GPU here, so neither the result\n"
            "nor the speed was measured"
        )
