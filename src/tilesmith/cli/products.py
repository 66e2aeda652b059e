"""How commands are told which products to take."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from tilesmith.bench.vocabulary import SUITES
from tilesmith.cli.options import DTYPE, SHAPE, SHAPE_SYNTAX
from tilesmith.core.vocabulary import ACCURACIES

if TYPE_CHECKING:
    from tilesmith.bench.suites import Product

_GIVEN: Final = "shapes"  # the suite of what the command line names

Callback = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Named:
    """The products that a command is told to take."""

    names: tuple[str, ...]  # of suites
    shapes: tuple[str, ...]
    dtype: str | None
    seed: int | None
    count: int | None

    def __bool__(self) -> bool:
        return bool(self.names or self.shapes)

    def products(self) -> Iterator[tuple[str, "Product"]]:
        """Each with its suite."""
        from tilesmith.bench import shapes, suites

        if (self.seed, self.count) != (None, None) and not any(map(suites.is_drawn, self.names)):
            raise click.UsageError("--seed and --count are for a suite that is drawn: --suite random")
        for name in self.names:
            for product in suites.load(name, self.seed, self.count):
                suite = f"{name}: {product.origin}" if product.origin else name
                yield suite, replace(product, dtype=self.dtype or product.dtype)
        for shape in self.shapes:
            product = shapes.parse(shape)
            yield _GIVEN, replace(product, dtype=self.dtype or product.dtype)


def product_options(command: Callback) -> Callback:
    """The options that name products, as `named`; and --accuracy, as `accuracy`."""

    @wraps(command)
    def with_named(
        *,
        names: tuple[str, ...],
        shapes: tuple[str, ...],
        dtype: str | None,
        seed: int | None,
        count: int | None,
        **others: Any,
    ) -> Any:
        return command(named=Named(names, shapes, dtype, seed, count), **others)

    several, of_random = "may be repeated", "of the suite `random`, instead of its own"
    options = (
        click.option("--suite", "names", type=click.Choice(SUITES), multiple=True, help=f"A suite; {several}."),
        click.option(
            *("--shape", "shapes"),
            type=SHAPE,
            metavar="SHAPE",
            multiple=True,
            help=f"{SHAPE_SYNTAX}, as 2048x8192x4096:tn; {several}.",
        ),
        click.option("--dtype", type=DTYPE, help="The operands' type, instead of the suite's."),
        click.option("--accuracy", type=click.Choice(ACCURACIES), help="How exact products of float32 must be."),
        click.option("--seed", type=int, help=f"The seed {of_random}."),
        click.option("--count", type=click.IntRange(min=1), help=f"How many products {of_random}."),
    )
    decorated: Callback = with_named
    for option in reversed(options):
        decorated = option(decorated)
    return decorated
