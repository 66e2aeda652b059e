"""`tilesmith explain`: the plan of a product as a person reads it. It needs no GPU."""

from typing import TYPE_CHECKING

import click

from tilesmith.bench import shapes
from tilesmith.cli import Command, UnusableError, columns, json_option, print_json
from tilesmith.cli.options import DTYPE, SHAPE, SHAPE_SYNTAX, gpu_option
from tilesmith.core.vocabulary import ACCURACIES, ACTIVATIONS

if TYPE_CHECKING:
    from tilesmith.core.device import Device


@click.command(cls=Command)
@click.argument("shape", type=SHAPE, metavar=SHAPE_SYNTAX)
@click.option("--dtype", type=DTYPE, default="float32", show_default=True, help="Of A and B.")
@click.option("--accuracy", type=click.Choice(ACCURACIES), help="Of float32; as torch is set if not given.")
@gpu_option("If not given, the GPU here, or where there is none an H200.")
@click.option("--bias", is_flag=True, help="A vector is added to its rows.")
@click.option("--activation", type=click.Choice(ACTIVATIONS), help="Of the sums.")
@click.option("--residual", is_flag=True, help="A matrix is added last.")
@json_option
def explain(
    shape: str,
    dtype: str,
    accuracy: str | None,
    gpu: "Device | None",
    bias: bool,
    activation: str | None,
    residual: bool,
    as_json: bool,
) -> None:
    """Show how a product would be multiplied on a GPU, and why so.

    The product is M x K by K x N, e.g. 4096x1024x2048. LAYOUT says how A and B are stored, n for rows and t for
    transposed: 2048x8192x4096:tn. BATCH is how many matrices there are of each: 512x1024x2048::128.
    """
    import tilesmith
    from tilesmith.core.numbers import lines_of

    product = shapes.parse(shape, dtype)
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
    except RuntimeError as wrong:
        raise UnusableError(str(wrong)) from wrong
    if as_json:
        print_json(explanation)
    else:
        with lines_of(columns()):
            click.echo(str(explanation))
