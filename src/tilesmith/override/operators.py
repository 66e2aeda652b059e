"""The kernels that take the place of torch's, one for each overload of its products."""

from collections.abc import Callable
from threading import local
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from tilesmith.override.routes import ONE, Route, Routes, epilogue_of, shares_memory
from tilesmith.override.settings import OPERATORS

Function = Callable[..., Tensor]

OVERLOADS: Final = ("", ".out", ".dtype", ".dtype_out")
_ADDITIONS: Final = tuple(operator for operator in OPERATORS if "add" in operator)
NAMES: Final = (
    *(operator + overload for operator in OPERATORS for overload in OVERLOADS),
    *(f"{operator}_" for operator in _ADDITIONS),
)


class Switch(Protocol):
    """Where the kernels ask for the routes that hold now."""

    @property
    def routes(self) -> "Routes | Watch": ...


class Watch(local):
    """Stands between timed kernels and the routes. The clock of a thread starts when a call's route is known: planning
    and compiling are no part of its time."""

    def __init__(self, switch: Switch, on_gpu: bool) -> None:
        self._switch, self._on_gpu = switch, on_gpu

    @property
    def routes(self) -> "Watch":
        return self

    def find(self, *arguments: Any) -> Route:
        route = self._switch.routes.find(*arguments)
        self._count = route[1]
        self._started = self._count.start(self._on_gpu)
        return route

    def timed(self, function: Function) -> Function:
        """The function, with the time of each call added to its count."""

        def call(*arguments: Any, **options: Any) -> Tensor:
            result = function(*arguments, **options)
            self._count.stop(self._started)
            return result

        return call


def kernels(switch: Switch, previous: dict[str, Function]) -> dict[str, Function]:
    """The function to register for each name, in the place of the previous one."""
    made: dict[str, Function] = {}
    for operator in OPERATORS:
        make = _additions if operator in _ADDITIONS else _products
        functions = make(operator, switch, *(previous[operator + overload] for overload in OVERLOADS))
        made |= {operator + overload: function for overload, function in zip(OVERLOADS, functions, strict=True)}
    for operator in _ADDITIONS:
        made[f"{operator}_"] = _in_place(operator, switch, previous[f"{operator}_"])
    return made


def _products(operator: str, switch: Switch, plain: Function, *others: Function) -> tuple[Function, ...]:
    """Makes the kernels of `mm` and `bmm`."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        run, count = switch.routes.find(operator, a, b)
        count.calls += 1
        return plain(a, b) if run is None else run(a, b)

    def overload(previous: Function) -> Function:
        """One that is told the type of its result, or where to write it, or both."""

        def product(a: Tensor, b: Tensor, *out_dtype: torch.dtype, **into: Tensor) -> Tensor:
            out = into.get("out")
            run, count = switch.routes.find(operator, a, b, out_dtype[0] if out_dtype else None, out)
            count.calls += 1
            return previous(a, b, *out_dtype, **into) if run is None else run(a, b, out)

        return product

    return product, *map(overload, others)


def _additions(operator: str, switch: Switch, plain: Function, *others: Function) -> tuple[Function, ...]:
    """Makes the kernels of `addmm` and `baddbmm`."""

    def addition(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        if beta is ONE and alpha is ONE:
            run, count = switch.routes.find(operator, a, b, None, None, c)
            count.calls += 1
            return plain(c, a, b) if run is None else run(a, b, c)
        return scaled_addition(c, a, b, beta=beta, alpha=alpha)

    def overload(previous: Function) -> Function:
        def addition(
            c: Tensor, a: Tensor, b: Tensor, *out_dtype: torch.dtype, beta: Any = 1, alpha: Any = 1, **into: Tensor
        ) -> Tensor:
            out = into.get("out")
            run, count = switch.routes.find(operator, a, b, out_dtype[0] if out_dtype else None, out, c, (beta, alpha))
            count.calls += 1
            if run is None:
                return previous(c, a, b, *out_dtype, beta=beta, alpha=alpha, **into)
            epilogue = epilogue_of((c, beta, alpha))
            if out is not None and shares_memory(out, c):  # c is read after the first results are written
                return out.copy_(run(a, b, out.new_empty_strided(out.shape, out.stride()), None, epilogue))
            return run(a, b, out, None, epilogue)

        return addition

    scaled_addition = overload(plain)
    return addition, *map(overload, others)


def _in_place(operator: str, switch: Switch, previous: Function) -> Function:
    """Makes the kernels of `addmm_` and `baddbmm_`."""

    def addition(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        run, count = switch.routes.find(operator, a, b, None, c, c, (beta, alpha))
        count.calls += 1
        if run is None:
            return previous(c, a, b, beta=beta, alpha=alpha)
        # c is read after the first results are written.
        return c.copy_(run(a, b, c.new_empty_strided(c.shape, c.stride()), None, epilogue_of((c, beta, alpha))))

    return addition
