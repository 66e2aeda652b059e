"""`tilesmith tune`: the fastest plans for products on this GPU, found by measuring, and kept."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, json_option
from tilesmith.cli.options import Finite, OutputFile, refuse_others
from tilesmith.cli.products import Named, product_options

if TYPE_CHECKING:
    from tilesmith.core.accuracy import Accuracy


@click.command(cls=Command)
@product_options
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run this Python program, and tune the products that it makes.",
)
@click.option(
    "--within",
    type=Finite(min=1),
    default=1.5,
    show_default=True,
    help="Time the candidates that are expected to take no more than this many times the least.",
)
@click.option("--record", "record_file", type=OutputFile(), help="Write all times to this file, as JSON.")
@click.option("--forget", "forgets", is_flag=True, help="Remove what was kept for this GPU, and measure nothing.")
@json_option
def tune(
    named: Named,
    trace: Path | None,
    accuracy: "Accuracy | None",
    within: float,
    record_file: Path | None,
    forgets: bool,
    as_json: bool,
) -> None:
    """Find the fastest plans for products on this GPU, and keep them.

    The legal plans for each product are timed. Where one is faster than the planner's choice, it is kept in the user's
    cache, and used from then on. The regret is the time of the planner's choice divided by that of the best.
    """
    if forgets:
        refuse_others(click.get_current_context(), "--forget measures nothing", "--forget", "--json")
    elif not (named or trace):
        raise click.UsageError("name what to tune: --suite, --shape or --trace")
    elif not named and (named.dtype is not None or accuracy is not None):
        raise click.UsageError("--trace takes products as the program makes them: no --dtype and no --accuracy")
    from tilesmith.cli import tune_run

    if forgets:
        tune_run.forget(as_json=as_json)
    else:
        tune_run.tune(named, trace, accuracy, within, record_file, as_json=as_json)
