"""`tilesmith bench`: products timed against torch, in the terminal, as JSON and as a page."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tilesmith.bench import runner, timing
from tilesmith.bench.compare import compare
from tilesmith.bench.contenders import OPPONENTS, Opponent, WrongResultError
from tilesmith.bench.markdown import markdown
from tilesmith.bench.page import page
from tilesmith.bench.plots import write_png
from tilesmith.bench.results import (
    AGAIN,
    BEHIND,
    FAR_BEHIND,
    OURS,
    TORCH,
    Competitor,
    Entry,
    Results,
    opponents,
)
from tilesmith.bench.runner import Settings
from tilesmith.bench.suites import Product
from tilesmith.cli import INTERRUPTED, UnusableError, console
from tilesmith.cli.products import Named, product_options, progress_bar
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.errors import UnavailableError

_FILE: Final = click.Path(dir_okay=False, path_type=Path)


def _opponents(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[Opponent, ...] | None:
    try:
        return None if value is None else runner.opponents(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@product_options
@click.option(
    "--against",
    callback=_opponents,
    help=f"Opponents instead of the suite's, with commas between: {', '.join(OPPONENTS)}.",
)
@click.option("--warm-l2", is_flag=True, help="Leave in L2 what the call before left there.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=Settings().seconds,
    show_default=True,
    help="For each product, at most.",
)
@click.option("--json", "json_file", type=_FILE, help="Write all samples to this file.")
@click.option("--html", "html_file", type=_FILE, help="Write a page to this file.")
@click.option("--png", "png_file", type=_FILE, help="Write plots to this file.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write tables in Markdown to this file.")
@click.option("--commit", help="The commit to note with the run; by default what git says of the source.")
@click.option(
    "--from",
    "recorded",
    type=_FILE,
    multiple=True,
    help="Measure nothing: show a file that --json wrote; may be repeated.",
)
@click.option(
    "--compare",
    "compared",
    type=(_FILE, _FILE),
    metavar="OLD NEW",
    help="Measure nothing: compare two files that --json wrote, and exit with 1 if something became slower.",
)
def bench(
    named: Named,
    accuracy: Accuracy | None,
    against: tuple[Opponent, ...] | None,
    warm_l2: bool,
    seconds: float,
    json_file: Path | None,
    html_file: Path | None,
    png_file: Path | None,
    markdown_file: Path | None,
    commit: str | None,
    recorded: tuple[Path, ...],
    compared: tuple[Path, Path] | None,
) -> None:
    """Time products against torch, check them, and show what came out.

    Everyone is timed in one run, in turn, until the medians are certain. A ratio is the opponent's time divided by
    ours. Ctrl-C ends the run, and keeps what was measured.
    """
    if compared is not None:
        _compare(*compared)
        return
    if recorded:
        _show([_read(path) for path in recorded], html_file, png_file, markdown_file)
        return
    if not torch.cuda.is_available():
        raise UnusableError(
            "bench times products on an NVIDIA GPU, and torch finds none here; `tilesmith explain` says what would run"
        )
    chosen = list((named or replace(named, names=("seeds",))).products())
    settings = Settings(against=against, accuracy=accuracy, warm_l2=warm_l2, seconds=seconds)
    results, interrupted = _run(chosen, settings, commit)
    if json_file is not None:
        results.write(json_file)
    _show([results], html_file, png_file, markdown_file)
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _show(runs: list[Results], html_file: Path | None, png_file: Path | None, markdown_file: Path | None) -> None:
    if len(runs) > 1 and png_file:
        raise click.UsageError("a picture shows one run; --html and --markdown take several")
    if markdown_file is not None:
        markdown_file.write_text(markdown(runs))
    if html_file is not None:
        html_file.write_text(page(runs))
    if png_file is not None and runs[0].entries:
        try:
            write_png(runs[0], png_file)
        except UnavailableError as missing:
            raise UnusableError(str(missing)) from missing
    for results in runs:
        _print_summary(results)


def _run(chosen: list[tuple[str, Product]], settings: Settings, commit: str | None) -> tuple[Results, bool]:
    """What was measured, and whether someone ended it before all was."""
    entries: list[Entry] = []
    unfinished: list[str] = []
    interrupted = False
    environment = runner.environment(["tilesmith", *sys.argv[1:]], settings, commit)
    out = console()
    progress = progress_bar(out)
    task = progress.add_task("Measuring", total=len(chosen))
    with timing.float32_precision(), Live(console=out, refresh_per_second=4) as live:
        try:
            progress.update(task, description="Compiling")
            live.update(progress)
            runner.compile_kernels((product for _, product in chosen), settings)
            for suite, product in chosen:
                progress.update(task, description=f"{suite}: {product.name}")
                live.update(Group(_table(out, entries), progress))
                try:
                    entries.append(runner.measure(product, suite, settings))
                except (WrongResultError, torch.OutOfMemoryError) as error:
                    unfinished.append(f"{suite}: {product.name} ({product}): {str(error).splitlines()[0]}")
                torch.cuda.empty_cache()
                progress.advance(task)
        except KeyboardInterrupt:
            interrupted = True
            measured = len(entries) + len(unfinished)
            unfinished += (f"{suite}: {product.name} ({product}): ended before" for suite, product in chosen[measured:])
        live.update(_table(out, entries))
    return Results(environment, tuple(entries), tuple(unfinished)), interrupted


def _table(out: Console, entries: list[Entry]) -> Table:
    names = opponents(entries)
    table = Table(box=None, pad_edge=False, padding=(0, 2 if out.width >= 100 else 1, 0, 0))
    for heading in ("product", "plan"):
        table.add_column(heading)
    for heading in ("us", "TFLOP/s", "GB/s", "roofline", *(f"ratio to {name}" for name in names), "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("norm: ours, theirs", justify="right")
    for each in entries:
        table.add_row(
            f"{each.name}\n{each.shape} {each.dtype}" + (f"\n{each.variant}" if each.variant else ""),
            each.plan,
            _times(each),
            f"{each.tflops:.1f}",
            f"{each.gigabytes_per_second:.0f}",
            "" if each.roofline_share is None else f"{each.roofline_share:.0%} {each.bound}",
            *(_ratio(each, name) for name in names),
            f"{each.noise:.1%}" if AGAIN in each.competitors else "",
            ", ".join(_norm(each.competitors[name]) for name in (OURS, *names) if name in each.competitors),
            style="yellow" if each.state is not None and each.state.throttled else None,
        )
    return table


def _times(entry: Entry) -> str:
    lower, upper = entry.ours.quartiles
    text = f"{entry.ours.median * 1e3:.1f}\n{lower * 1e3:.1f} to {upper * 1e3:.1f}"
    return text if entry.ours.graph_ms is None else f"{text}\nin a graph {entry.ours.graph_ms * 1e3:.1f}"


def _ratio(entry: Entry, name: str) -> str:
    if name not in entry.opponents:
        return ""
    return f"{entry.ratio(name):.3f}\n{entry.verdict(name)}"


def _norm(competitor: Competitor) -> str:
    return "-" if competitor.norm is None else f"{competitor.norm:.1e}"


def _print_summary(results: Results) -> None:
    out = console()
    for suite in results.suites:
        for name in results.opponents:
            mean = results.mean_ratio(suite, name)
            if mean is not None:
                out.print(f"{suite}: geometric mean of the ratios to {name}: {mean:.3f}")
    _print_losers(out, results)
    calls = [each for each in results.entries if each.clock == "wall" and TORCH in each.opponents]
    if calls:
        behind = [each.label for each in calls if each.is_behind]
        out.print(f"slower than torch by more than 5% above 50 us or 15% below: {len(behind)} of {len(calls)} calls")
        for label in behind:
            out.print(f"  {label}")
    held_down = [each.name for each in results.entries if each.state is not None and each.state.throttled]
    if held_down:
        out.print(f"The clocks were held down at: {', '.join(held_down)}.", style="yellow")
    for missed in results.unfinished:
        out.print(f"Not measured: {missed}.", style="yellow")


def _print_losers(out: Console, results: Results) -> None:
    """Those that torch does faster, of products that were tried with all plans."""
    for suite in results.suites:
        tried = [each for each in results.entries if each.suite == suite and each.tries_all and TORCH in each.opponents]
        losers = sorted((each for each in tried if each.is_slower), key=lambda each: each.ratio(TORCH))
        if not tried:
            continue
        far = sum(each.ratio(TORCH) < FAR_BEHIND for each in losers)
        out.print(f"{suite}: {len(losers)} of {len(tried)} under {BEHIND} of torch's speed, {far} under {FAR_BEHIND}")
        for each in losers:
            best = "" if each.fastest is None else f"; the best plan, {each.fastest.plan}: {each.best_ratio:.2f}"
            out.print(f"  {each.label}: {each.ratio(TORCH):.2f} with {each.plan}{best}")


def _read(path: Path) -> Results:
    try:
        return Results.read(path)
    except (OSError, ValueError) as error:
        raise UnusableError(str(error)) from error


def _compare(old: Path, new: Path) -> None:
    before, after = _read(old), _read(new)
    try:
        comparison = compare(before, after)
    except ValueError as error:
        raise UnusableError(str(error)) from error
    click.echo(comparison.describe())
    if comparison.regression:
        raise click.exceptions.Exit(1)
