"""What several commands are asked in the same words: a shape, a GPU, a type. Nothing here imports torch."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tilesmith.bench import shapes
from tilesmith.bench.vocabulary import LAYOUTS, SYNTAX
from tilesmith.core import device as devices
from tilesmith.core.device import Device
from tilesmith.core.vocabulary import OUT_DTYPES

_SHORT_DTYPES: Final = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
}
_SHAPES: Final = ("4096x4096x4096", "8205x2949x5921", "256x524288x256")  # offered where nothing is written yet

Option = Callable[[Any], Any]

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # which is generic since click 8.4


def _starting(words: Any, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete.lower())]


class _Dtype(_ParamType):
    """A type of operands, by torch's name or a short one: torch's name."""

    name = "dtype"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(OUT_DTYPES)}]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = value.lower().removeprefix("torch.")
        name = _SHORT_DTYPES.get(name, name)
        if name not in OUT_DTYPES:
            shorts = ", ".join(_SHORT_DTYPES)
            self.fail(f"{value!r} is not one of {', '.join(OUT_DTYPES)}, nor of {shorts}", param, ctx)
        return name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _starting((*OUT_DTYPES, *_SHORT_DTYPES), incomplete)


class _Gpu(_ParamType):
    """A GPU by its name, or by an architecture."""

    name = "gpu"

    def convert(self, value: str | Device, param: click.Parameter | None, ctx: click.Context | None) -> Device:
        if isinstance(value, Device):
            return value
        try:
            return devices.named(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _starting((*devices.KNOWN_GPUS, *devices.ARCHITECTURES), incomplete)


class _Shape(_ParamType):
    """A product: the text, which was read once to see that it is one."""

    name = "shape"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            shapes.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        sizes, colon, layout = incomplete.partition(":")
        if colon and ":" not in layout:
            return [CompletionItem(f"{sizes}:{each}") for each in LAYOUTS if each.startswith(layout)]
        return _starting(_SHAPES, incomplete)


DTYPE: Final = _Dtype()
GPU: Final = _Gpu()
SHAPE: Final = _Shape()
SHAPE_SYNTAX: Final = SYNTAX


def gpu_option(about: str) -> Option:
    """`--gpu` or `--arch`, which are one: a Device, or None if it is not given."""
    return click.option(
        *("--gpu", "--arch", "gpu"),
        type=GPU,
        metavar="GPU",
        help=f"A name, as {', '.join(devices.KNOWN_GPUS)}, or an architecture, as sm_90. {about}",
    )


class OutputFile(click.Path):
    """A file to write, or perhaps a folder: what it is in must be there before hours are spent on what goes into it."""

    def __init__(self, *, or_folder: bool = False) -> None:
        super().__init__(dir_okay=or_folder, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("a file has a name", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"Directory {str(path.parent)!r} does not exist.", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
            self.fail(f"Directory {str(path.parent)!r} is not writable.", param, ctx)
        return path


class Finite(click.FloatRange):
    """A number in a range, which "nan" is not, nor "inf"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def refuse_others(context: click.Context, purpose: str, *allowed: str) -> None:
    """Raises for options that were given and that mean nothing for this purpose, instead of ignoring them."""
    given = [
        option.opts[0]
        for option in context.command.params
        if isinstance(option, click.Option)
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if others := [name for name in given if name not in allowed]:
        raise click.UsageError(f"{purpose}: {', '.join(others)} would mean nothing")
