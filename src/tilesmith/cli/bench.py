"""`tilesmith bench`: products timed against torch, in the terminal, as JSON and as a page."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tilesmith.bench import vocabulary
from tilesmith.bench.vocabulary import OPPONENTS, SECONDS, Opponent
from tilesmith.cli import Command, json_option
from tilesmith.cli.options import Finite, OutputFile, refuse_others
from tilesmith.cli.products import Named, product_options

if TYPE_CHECKING:
    from tilesmith.core.accuracy import Accuracy

_RECORDED: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHOWN: Final = ("--html", "--png", "--markdown", "--json")


def _opponents(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[Opponent, ...] | None:
    try:
        return None if value is None else vocabulary.opponents(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(cls=Command)
@product_options
@click.option(
    "--against",
    callback=_opponents,
    help=f"Opponents instead of the suite's, with commas between: {', '.join(OPPONENTS)}.",
)
@click.option("--warm-l2", is_flag=True, help="Leave in L2 what the call before left there.")
@click.option(
    "--seconds",
    type=Finite(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="For each product, at most.",
)
@click.option("--record", "record_file", type=OutputFile(), help="Write all samples to this file, as JSON.")
@click.option("--html", "html_file", type=OutputFile(), help="Write a page to this file.")
@click.option("--png", "png_file", type=OutputFile(), help="Write plots to this file.")
@click.option("--markdown", "markdown_file", type=OutputFile(), help="Write tables in Markdown to this file.")
@click.option("--commit", help="The commit to note with the run; by default what git says of the source.")
@click.option(
    "--from",
    "recorded",
    type=_RECORDED,
    multiple=True,
    help="Measure nothing: show a file that --record wrote; may be repeated.",
)
@click.option(
    "--compare",
    "compared",
    type=(_RECORDED, _RECORDED),
    metavar="OLD NEW",
    help="Measure nothing: compare two files that --record wrote, and exit with 1 if something became slower.",
)
@json_option
def bench(
    named: Named,
    accuracy: "Accuracy | None",
    against: tuple[Opponent, ...] | None,
    warm_l2: bool,
    seconds: float,
    record_file: Path | None,
    html_file: Path | None,
    png_file: Path | None,
    markdown_file: Path | None,
    commit: str | None,
    recorded: tuple[Path, ...],
    compared: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Time products against torch, check them, and show what came out.

    Everyone is timed in one run, in turn, until the medians are certain. A ratio is the opponent's time divided by
    ours. Ctrl-C ends the run, and keeps what was measured.
    """
    context = click.get_current_context()
    if compared is not None:
        refuse_others(context, "--compare says what changed between two runs", "--compare", "--json")
    elif recorded:
        refuse_others(context, "--from shows what was measured", "--from", *_SHOWN)
        if len(recorded) > 1 and (png_file or as_json):
            raise click.UsageError("a picture or JSON shows one run; --html and --markdown take several")
    from tilesmith.bench.runner import Settings
    from tilesmith.cli import bench_run

    if compared is not None:
        bench_run.compare_files(*compared, as_json=as_json)
        return
    shown = bench_run.Shown(html_file, png_file, markdown_file, as_json)
    if recorded:
        bench_run.show([bench_run.read(path) for path in recorded], shown)
        return
    chosen = list((named or replace(named, names=("seeds",))).products())
    settings = Settings(against=against, accuracy=accuracy, warm_l2=warm_l2, seconds=seconds)
    bench_run.measure(chosen, settings, commit, record_file, shown)
