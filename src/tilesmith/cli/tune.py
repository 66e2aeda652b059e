"""`tilesmith tune`: the fastest plans for products on this GPU, found by measuring, and kept."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tilesmith import accuracy as accuracies
from tilesmith import device as devices
from tilesmith.accuracy import ACCURACIES, Accuracy
from tilesmith.bench import suites
from tilesmith.bench.recording import record
from tilesmith.bench.shapes import parse
from tilesmith.bench.suites import Product
from tilesmith.bench.tuning import Tuned, mean_regret
from tilesmith.bench.tuning import tune as tune_problem
from tilesmith.cli import UnusableError, console
from tilesmith.planner import tuned as kept
from tilesmith.problem import Problem

_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_DTYPES: Final = ("float32", "bfloat16", "float16", "float64", "int8", "int32")
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    problem: Problem


@click.command()
@click.option(
    "--suite", "names", type=click.Choice(suites.NAMES), multiple=True, help="A suite of products; may be repeated."
)
@click.option("--shape", "shapes", multiple=True, help="MxKxN[:layout][:batch], as 2048x8192x4096:tn; may be repeated.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run this Python program, and tune the products that it makes.",
)
@click.option("--dtype", type=click.Choice(_DTYPES), help="The operands' type, instead of the suite's.")
@click.option("--accuracy", type=click.Choice(ACCURACIES), help="How exact products of float32 must be.")
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
    names: tuple[str, ...],
    shapes: tuple[str, ...],
    trace: Path | None,
    dtype: str | None,
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
    found, interrupted = _tuned(_problems(names, shapes, trace, dtype, accuracy), within)
    winners = {kept.key(each.problem): each.best for _, each in found if each.is_worth_it}
    _report(found)
    if winners:
        path = kept.remember(winners, here)
        click.echo(f"{len(winners)} plans are kept in {path}")
    if json_file is not None:
        json_file.write_text(json.dumps([_as_json(name, each) for name, each in found], indent=1) + "\n")
    if interrupted:
        raise click.exceptions.Exit(_INTERRUPTED)


def _problems(
    names: tuple[str, ...], shapes: tuple[str, ...], trace: Path | None, dtype: str | None, accuracy: Accuracy | None
) -> list[_Named]:
    if not (names or shapes or trace):
        raise click.UsageError("name what to tune: --suite, --shape or --trace")
    products: list[Product] = [product for name in names for product in suites.load(name)]
    for shape in shapes:
        try:
            products.append(parse(shape))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shape") from error
    resolved = accuracies.resolve(accuracy)
    found = []
    for product in products:
        of_type = replace(product, dtype=dtype or product.dtype)
        found.append(_Named(product.name, Problem.of(*of_type.operands("meta"), accuracy=resolved)))
    if trace is not None:
        recorded = record(trace)
        if not recorded:
            raise UnusableError(f"{trace.name} makes no products that Tilesmith takes")
        found += (_Named(f"called {count} times", problem) for problem, count in recorded.most_common())
    return found


def _tuned(problems: list[_Named], within: float) -> tuple[list[tuple[str, Tuned]], bool]:
    """What was found, and whether someone ended it before all was."""
    found: list[tuple[str, Tuned]] = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("Tuning", total=len(problems))
        try:
            for each in problems:
                progress.update(task, description=str(each.problem))
                found.append((each.name, tune_problem(each.problem, within)))
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
