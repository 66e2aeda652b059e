"""What `tilesmith tune` does: it measures candidates, keeps the fastest, and says what that gains."""

import json
from pathlib import Path
from typing import Any

import click
import torch
from rich.table import Table

from tilesmith.bench.recording import record
from tilesmith.bench.suites import Product
from tilesmith.bench.tuning import Tuned, mean_regret
from tilesmith.bench.tuning import tune as tune_problem
from tilesmith.cli import INTERRUPTED, UnusableError, console, print_json
from tilesmith.cli.output import progress_bar
from tilesmith.cli.products import Named
from tilesmith.core import accuracy as accuracies
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.problem import Problem
from tilesmith.planner import tuned as kept


def forget(*, as_json: bool) -> None:
    """Removes what was kept for the GPU here."""
    was_kept = kept.forget(_here())
    if as_json:
        print_json({"forgotten": was_kept})
    else:
        click.echo("forgotten" if was_kept else "nothing was kept for this GPU")


def tune(
    named: Named,
    trace: Path | None,
    accuracy: Accuracy | None,
    within: float,
    record_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Tunes, and ends the command with its exit code if someone ended it before all was measured."""
    products = list(named.products())
    here = _here()
    found, interrupted = _tuned(_problems(products, trace, accuracy), within)
    winners = {kept.key(each.problem): each.best for _, each in found if each.is_worth_it}
    measured = [_as_json(name, each) for name, each in found]
    path = kept.remember(winners, here) if winners else None
    if as_json:
        print_json(measured)
    else:
        _report(found)
        if path is not None:
            click.echo(f"{len(winners)} plans are kept in {path}")
    if record_file is not None:
        record_file.write_text(json.dumps(measured, indent=1) + "\n")
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _here() -> Device:
    if not torch.cuda.is_available():
        raise UnusableError("tune times products on an NVIDIA GPU, and torch finds none here")
    return devices.installed(torch.cuda.current_device())


def _problems(
    products: list[tuple[str, Product]], trace: Path | None, accuracy: Accuracy | None
) -> list[tuple[str, Problem]]:
    """What is to be tuned, each with a name for it."""
    found = []
    for _, product in products:
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
    progress = progress_bar()
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
