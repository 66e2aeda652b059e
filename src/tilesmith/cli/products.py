"""How commands are told which products to take, and how they show that they are at it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tilesmith.bench import suites
from tilesmith.bench.shapes import SYNTAX, parse
from tilesmith.bench.suites import Product
from tilesmith.core.accuracy import ACCURACIES
from tilesmith.core.problem import OUT_DTYPES

DTYPES: Final = [str(dtype).removeprefix("torch.") for dtype in OUT_DTYPES]
_GIVEN: Final = "shapes"  # the suite of what the command line names

Command = Callable[..., Any]


def product_options(command: Command) -> Command:
    """The options --suite, --shape, --dtype and --accuracy, as `names`, `shapes`, `dtype` and `accuracy`."""
    several = "may be repeated"
    options = (
        click.option("--suite", "names", type=click.Choice(suites.NAMES), multiple=True, help=f"A suite; {several}."),
        click.option("--shape", "shapes", multiple=True, help=f"{SYNTAX}, as 2048x8192x4096:tn; {several}."),
        click.option("--dtype", type=click.Choice(DTYPES), help="The operands' type, instead of the suite's."),
        click.option("--accuracy", type=click.Choice(ACCURACIES), help="How exact products of float32 must be."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def products(names: Iterable[str], shapes: Iterable[str], dtype: str | None) -> Iterator[tuple[str, Product]]:
    """What these options name, each with its suite."""
    for name in names:
        for product in suites.load(name):
            suite = f"{name}: {product.origin}" if product.origin else name
            yield suite, replace(product, dtype=dtype or product.dtype)
    for shape in shapes:
        try:
            product = parse(shape)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shape") from error
        yield _GIVEN, replace(product, dtype=dtype or product.dtype)


def progress_bar(console: Console, *, quiet: bool = False) -> Progress:
    """One with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet)
