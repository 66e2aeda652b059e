"""What `tilesmith bench` does: it measures, shows what was measured, and compares."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tilesmith.bench import runner, timing
from tilesmith.bench.compare import compare
from tilesmith.bench.contenders import WrongResultError
from tilesmith.bench.markdown import markdown
from tilesmith.bench.page import page
from tilesmith.bench.plots import write_png
from tilesmith.bench.results import (
    AGAIN,
    BEHIND,
    FAR_BEHIND,
    FORMAT,
    OURS,
    TORCH,
    Competitor,
    Entry,
    Results,
    opponents,
)
from tilesmith.bench.runner import Settings
from tilesmith.bench.suites import Product
from tilesmith.cli import INTERRUPTED, UnusableError, console, print_json
from tilesmith.cli.output import progress_bar


@dataclass(frozen=True, slots=True)
class Shown:
    """Where what was measured is shown."""

    html_file: Path | None
    png_file: Path | None
    markdown_file: Path | None
    as_json: bool  # on stdout, in the place of tables


def measure(
    chosen: list[tuple[str, Product]], settings: Settings, commit: str | None, record_file: Path | None, shown: Shown
) -> None:
    """Measures, and ends the command with its exit code if someone ended it before all was measured."""
    if not torch.cuda.is_available():
        raise UnusableError(
            "bench times products on an NVIDIA GPU, and torch finds none here; `tilesmith explain` says what would run"
        )
    results, interrupted = _run(chosen, settings, commit, quiet=shown.as_json)
    if record_file is not None:
        results.write(record_file)
    show([results], shown)
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def show(runs: list[Results], shown: Shown) -> None:
    """What runs measured."""
    if shown.markdown_file is not None:
        shown.markdown_file.write_text(markdown(runs))
    if shown.html_file is not None:
        shown.html_file.write_text(page(runs))
    if shown.png_file is not None and runs[0].entries:
        write_png(runs[0], shown.png_file)
    if shown.as_json:
        print_json({"format": FORMAT, **asdict(runs[0])})
        return
    for results in runs:
        _print_summary(results)


def _run(
    chosen: list[tuple[str, Product]], settings: Settings, commit: str | None, *, quiet: bool
) -> tuple[Results, bool]:
    """What was measured, and whether someone ended it before all was."""
    entries: list[Entry] = []
    unfinished: list[str] = []
    interrupted = False
    environment = runner.environment(["tilesmith", *sys.argv[1:]], settings, commit)
    out = Console(stderr=True, quiet=not sys.stderr.isatty()) if quiet else console()
    progress = progress_bar(out)
    task = progress.add_task("Measuring", total=len(chosen))
    with timing.float32_precision(), Live(console=out, refresh_per_second=4, transient=quiet) as live:
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


def read(path: Path) -> Results:
    """A run that was recorded."""
    try:
        return Results.read(path)
    except ValueError as error:
        raise UnusableError(str(error)) from error


def compare_files(old: Path, new: Path, *, as_json: bool) -> None:
    """Says what changed, and ends the command with exit code 1 if something became slower."""
    before, after = read(old), read(new)
    try:
        comparison = compare(before, after)
    except ValueError as error:
        raise UnusableError(str(error)) from error
    if as_json:
        print_json(comparison)
    else:
        click.echo(comparison.describe())
    if comparison.regression:
        raise click.exceptions.Exit(1)
