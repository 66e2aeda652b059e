"""`tilesmith explain`: the plan of a product as a person reads it. It needs no GPU."""

import click

import tilesmith
from tilesmith.bench import shapes
from tilesmith.cli import UnusableError, json_option, print_json
from tilesmith.cli.products import DTYPES
from tilesmith.core.accuracy import ACCURACIES
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.errors import UnavailableError


@click.command()
@click.argument("shape", metavar=shapes.SYNTAX)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of A and B.")
@click.option("--accuracy", type=click.Choice(ACCURACIES), help="Of float32; as torch is set if not given.")
@click.option("--gpu", type=click.Choice(list(KNOWN_GPUS)), help="The GPU here if not given, or an H200.")
@json_option
def explain(shape: str, dtype: str, accuracy: str | None, gpu: str | None, as_json: bool) -> None:
    """Show how a product would be multiplied on a GPU, and why so.

    The product is M x K by K x N, e.g. 4096x1024x2048. LAYOUT says how A and B are stored, n for rows and t for
    transposed: 2048x8192x4096:tn. BATCH is how many matrices there are of each: 512x1024x2048::128.
    """
    try:
        product = shapes.parse(shape, dtype)
    except ValueError as wrong:
        raise UnusableError(str(wrong)) from None
    try:
        explanation = tilesmith.explain(*product.operands("meta"), accuracy=accuracy, gpu=gpu)
    except UnavailableError as missing:
        raise UnusableError(str(missing)) from missing
    if as_json:
        print_json(explanation)
    else:
        click.echo(str(explanation))
