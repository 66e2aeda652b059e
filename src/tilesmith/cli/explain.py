"""`tilesmith explain`: the plan of a product as a person reads it. It needs no GPU."""

import click

import tilesmith
from tilesmith.bench import shapes
from tilesmith.cli import UnusableError, json_option, print_json
from tilesmith.cli.products import DTYPES
from tilesmith.core.accuracy import ACCURACIES
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import ACTIVATIONS
from tilesmith.core.errors import UnavailableError


@click.command()
@click.argument("shape", metavar=shapes.SYNTAX)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of A and B.")
@click.option("--accuracy", type=click.Choice(ACCURACIES), help="Of float32; as torch is set if not given.")
@click.option("--gpu", type=click.Choice(list(KNOWN_GPUS)), help="The GPU here if not given, or an H200.")
@click.option("--bias", is_flag=True, help="A vector is added to its rows.")
@click.option("--activation", type=click.Choice(ACTIVATIONS), help="Of the sums.")
@click.option("--residual", is_flag=True, help="A matrix is added last.")
@json_option
def explain(
    shape: str,
    dtype: str,
    accuracy: str | None,
    gpu: str | None,
    bias: bool,
    activation: str | None,
    residual: bool,
    as_json: bool,
) -> None:
    """Show how a product would be multiplied on a GPU, and why so.

    The product is M x K by K x N, e.g. 4096x1024x2048. LAYOUT says how A and B are stored, n for rows and t for
    transposed: 2048x8192x4096:tn. BATCH is how many matrices there are of each: 512x1024x2048::128.
    """
    try:
        product = shapes.parse(shape, dtype)
    except ValueError as wrong:
        raise UnusableError(str(wrong)) from None
    try:
        a, b = product.operands("meta")
        explanation = tilesmith.explain(
            *(a, b),
            bias=a.new_empty(product.n) if bias else None,
            activation=activation,
            residual=a.new_empty(*a.shape[:-1], product.n) if residual else None,
            accuracy=accuracy,
            gpu=gpu,
        )
    except (UnavailableError, NotImplementedError, RuntimeError) as wrong:
        raise UnusableError(str(wrong)) from wrong
    if as_json:
        print_json(explanation)
    else:
        click.echo(str(explanation))
