"""`tilesmith build`: all kernels of an architecture, or those of products, compiled ahead into one archive."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, format_bytes, format_kernels, json_option, print_json
from tilesmith.cli.options import gpu_option
from tilesmith.cli.products import Named, product_options

if TYPE_CHECKING:
    from tilesmith.core.device import Device


@click.command(cls=Command)
@product_options
@gpu_option("If not given, the current GPU, or where there is none an H200.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, instead of the one in the user's cache.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Compile so many at the same time, instead of one on each core."
)
@json_option
def build(
    named: Named,
    accuracy: str | None,
    gpu: "Device | None",
    output: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile all kernels for a GPU ahead, into one archive.

    If products are named, it has their kernels alone.

    What is multiplied from then on finds its kernels there, and compiles nothing. Kernels that the cache on disk has
    are not compiled again, so a build that was interrupted goes on where it was.
    """
    if not named and (accuracy is not None or named.dtype is not None):
        raise click.UsageError("--dtype and --accuracy are of products: name some with --suite or --shape")
    from tilesmith.cli import build_run

    products = [product for _, product in named.products()]
    built = build_run.build(products, accuracy, gpu, output, jobs, quiet=as_json)
    if as_json:
        print_json(built)
    else:
        what = f"{format_kernels(built.kernels)} for {built.arch}, {format_bytes(built.bytes)}"
        click.echo(f"{what}, in {built.seconds:g} s: {built.path}")
