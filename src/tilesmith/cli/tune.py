"""`tilesmith tune`: the fastest plans for products on this GPU, found by measuring, and kept."""

import json
from pathlib import Path
from typing import Any, Final

import click
import torch
from rich.console import Console
from rich.table import Table

from tilesmith.bench.recording import record
from tilesmith.bench.tuning import Tuned, mean_regret
from tilesmith.bench.tuning import tune as tune_problem
from tilesmith.cli import INTERRUPTED, UnusableError, console
from tilesmith.cli.products import Named, product_options, progress_bar
from tilesmith.core import accuracy as accuracies
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.problem import Problem
from tilesmith.planner import tuned as kept

_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.command()
@product_options
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run this Python program, and tune the products that it makes.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=1),
    default=1.5,
    show_default=True,
    help="Time the candidates that are expected to take no more than this many times the least.",
)
@click.option("--json", "json_file", type=_FILE, help="Write all times to this file.")
@click.option("--forget", is_flag=True, help="Remove what was kept for this GPU, and measure nothing.")
def tune(
    named: Named,
    trace: Path | None,
    accuracy: Accuracy | None,
    within: float,
    json_file: Path | None,
    forget: bool,
) -> None:
    """Find the fastest plans for products on this GPU, and keep them.

    The legal plans for each product are timed. Where one is faster than the planner's choice, it is kept in the user's
    cache, and used from then on. The regret is the time of the planner's choice divided by that of the best.
    """
    if not torch.cuda.is_available():
        raise UnusableError("tune times products on an NVIDIA GPU, and torch finds none here")
    here = devices.installed(torch.cuda.current_device())
    if forget:
        click.echo("forgotten" if kept.forget(here) else "nothing was kept for this GPU")
        return
    found, interrupted = _tuned(_problems(named, trace, accuracy), within)
    winners = {kept.key(each.problem): each.best for _, each in found if each.is_worth_it}
    _report(found)
    if winners:
        path = kept.remember(winners, here)
        click.echo(f"{len(winners)} plans are kept in {path}")
    if json_file is not None:
        json_file.write_text(json.dumps([_as_json(name, each) for name, each in found], indent=1) + "\n")
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _problems(named: Named, trace: Path | None, accuracy: Accuracy | None) -> list[tuple[str, Problem]]:
    """What is to be tuned, each with a name for it."""
    if not (named or trace):
        raise click.UsageError("name what to tune: --suite, --shape or --trace")
    found = []
    for _, product in named.products():
        resolved = accuracies.resolve(accuracy or product.accuracy)
        found.append((product.name, Problem.of(*product.operands("meta"), accuracy=resolved)))
    if trace is not None:
        recorded = record(trace)
        if not recorded:
            raise UnusableError(f"{trace.name} makes no products that Tilesmith takes")
        found += ((f"called {count} times", problem) for problem, count in recorded.most_common())
    return found


def _tuned(problems: list[tuple[str, Problem]], within: float) -> tuple[list[tuple[str, Tuned]], bool]:
    """What was found, and whether someone ended it before all was."""
    found: list[tuple[str, Tuned]] = []
    progress = progress_bar(Console(stderr=True))
    with progress:
        task = progress.add_task("Tuning", total=len(problems))
        try:
            for name, problem in problems:
                progress.update(task, description=str(problem))
                found.append((name, tune_problem(problem, within)))
                torch.cuda.empty_cache()
                progress.advance(task)
        except KeyboardInterrupt:
            return found, True
    return found, False


def _report(found: list[tuple[str, Tuned]]) -> None:
    out = console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("product", "planner's choice", "best"):
        table.add_column(heading)
    for heading in ("us", "best us", "regret", "timed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in found:
        table.add_row(
            *(f"{name}\n{each.problem}", each.expected, each.best if each.best != each.expected else ""),
            *(f"{each.milliseconds[x] * 1e3:.1f}" for x in (each.expected, each.best)),
            *(f"{each.regret:.3f}", f"{len(each.milliseconds)} of {len(each.milliseconds) + each.untried}"),
        )
    out.print(table)
    if found:
        worst = max(each.regret for _, each in found)
        mean = mean_regret(each for _, each in found)
        out.print(f"regret: geometric mean {mean:.3f}, worst {worst:.3f}")


def _as_json(name: str, each: Tuned) -> dict[str, Any]:
    return {
        "name": name,
        "problem": kept.key(each.problem),
        "choice": each.expected,
        "best": each.best,
        "regret": each.regret,
        "milliseconds": each.milliseconds,
    }
