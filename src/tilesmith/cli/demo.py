"""`tilesmith demo`: the five reference products.

With a GPU they are multiplied at full size, checked against float64 and timed against torch. Without one they are
planned for an H200 and compiled for it, and the same kernels multiply small ones in the emulator.
"""

from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, json_option, print_json
from tilesmith.cli.output import progress_bar

if TYPE_CHECKING:
    from tilesmith.cli.demo_measure import Measurement
    from tilesmith.cli.demo_preview import Preview


@click.command(cls=Command)
@json_option
def demo(as_json: bool) -> None:
    """Multiply the five reference products, or where there is no GPU small ones in the emulator.

    Exits with 1 if a result is less exact than it must be, and with 2 if the machine lacks something needed.
    """
    from tilesmith.cli import demo_measure, demo_preview

    result = _run(as_json)
    if as_json:
        print_json(result)
    elif isinstance(result, demo_measure.Measurement):
        demo_measure.print_measurement(result)
    else:
        demo_preview.print_preview(result)
    if not result.accurate:
        raise click.exceptions.Exit(1)


def _run(quiet: bool) -> "Measurement | Preview":
    import torch

    from tilesmith.bench import suites
    from tilesmith.cli import demo_measure, demo_preview
    from tilesmith.core import device

    products = suites.load("seeds")
    progress = progress_bar(quiet=quiet)
    if torch.cuda.is_available():
        with progress:
            return demo_measure.measure(progress.track(products, description="Multiplying"))
    if not quiet:
        click.echo(
            f"torch finds no GPU here: planning and compiling for an {device.named(device.STAND_IN).name} instead, and "
            "multiplying small products of the same kind with its kernels on the CPU."
        )
    with progress:
        return demo_preview.preview(progress.track(products, description="Compiling and emulating"))
