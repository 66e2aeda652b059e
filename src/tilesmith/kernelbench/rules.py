"""What torch's operations mean as expressions: one small function for each family of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tilesmith.kernelbench import simplify
from tilesmith.kernelbench.expression import Added, Expression, Multiplied, Number, Scalar, Triangle

_aten: Final = torch.ops.aten


SUPPORTED: Final = (
    "Supported are: products (matmul, mm, bmm, mv, dot, addmm, baddbmm, linear, einsum and others that torch brings to "
    "these), views (transpose, permute, reshape, expand and so on), factors, sums, triangles and detach."
)


class RefusalError(Exception):
    """An operation, or these arguments of it, has no expression."""

    def describe(self, place: str) -> str:
        """What is not supported and where, and what is."""
        return f"{self} is not supported{place}. {SUPPORTED}"


@dataclass(frozen=True, slots=True)
class Diagonal:
    """torch.diag of a vector: known only as a factor of a product, which then multiplies rows or columns.

    The zeros besides the diagonal are dropped, also where they would have met infinities.
    """

    vector: Expression


@dataclass(frozen=True, slots=True)
class Stale:
    """A tensor that changed when another one that shares its memory was changed in place."""


Value: TypeAlias = Expression | Diagonal | Stale


@dataclass(frozen=True, slots=True)
class Call:
    """One operation that torch has dispatched."""

    name: str  # e.g. "aten.mm"
    arguments: Mapping[str, Any]  # all of them, by the names that torch gives them
    result: torch.Tensor
    known: Callable[[torch.Tensor], Value]
    numbers: Mapping[Number, Scalar]  # the arguments of forward that have these values

    def value(self, name: str) -> Value:
        return self.known(self.arguments[name])

    def tensor(self, name: str) -> Expression:
        return plain(self.value(name), self.name)

    def number(self, name: str) -> Scalar:
        value = self.arguments[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusalError(f"{self.name} with {value!r}")
        return self.numbers.get(value) or Scalar(value)

    def has_tensor(self, name: str) -> bool:
        return isinstance(self.arguments[name], torch.Tensor)


def plain(value: Value, what: str) -> Expression:
    """A value that can be used for anything."""
    if isinstance(value, Diagonal):
        raise RefusalError(f"{what} of torch.diag outside of a product of two matrices")
    if isinstance(value, Stale):
        raise RefusalError(f"{what} of a tensor that was changed in place under another name")
    return value


def _reshape(call: Call) -> Expression:
    return simplify.reshape(call.tensor("self"), tuple(call.result.shape))


def _t(call: Call) -> Expression:
    x = call.tensor("self")
    return simplify.transposed(x) if len(x.shape) == 2 else x


def _transpose(call: Call) -> Expression:
    x = call.tensor("self")
    order = list(range(len(x.shape)))
    if order:
        i, j = call.arguments["dim0"], call.arguments["dim1"]
        order[i], order[j] = order[j], order[i]
    return simplify.permute(x, tuple(order))


def _permute(call: Call) -> Expression:
    x = call.tensor("self")
    return simplify.permute(x, tuple(i % len(x.shape) for i in call.arguments["dims"]))


def _slice(call: Call) -> Expression:
    x = call.tensor("self")
    if x.shape != tuple(call.result.shape):
        raise RefusalError(call.name)
    return x


def _product(a: str, b: str) -> "Rule":
    def rule(call: Call) -> Expression:
        x, y = call.value(a), call.value(b)
        if isinstance(x, Diagonal) and not isinstance(y, Diagonal) and call.arguments[b].dim() == 2:
            return Multiplied(simplify.reshape(x.vector, (*x.vector.shape, 1)), plain(y, call.name))
        if isinstance(y, Diagonal) and not isinstance(x, Diagonal) and call.arguments[a].dim() == 2:
            return Multiplied(plain(x, call.name), y.vector)
        return simplify.product(plain(x, call.name), plain(y, call.name))

    return rule


def _added_product(a: str, b: str) -> "Rule":
    multiply = _product(a, b)

    def rule(call: Call) -> Expression:
        product = simplify.scaled(plain(multiply(call), call.name), call.number("alpha"))
        if call.arguments["beta"] == 0:  # torch does not read it then
            return product
        return Added(product, simplify.scaled(call.tensor("self"), call.number("beta")))

    return rule


def _multiply(call: Call) -> Expression:
    if call.has_tensor("other"):
        return Multiplied(call.tensor("self"), call.tensor("other"))
    return simplify.scaled(call.tensor("self"), call.number("other"))


def _divide(call: Call) -> Expression:
    """Only where the reciprocal is exact: x / 3 and x * (1 / 3) differ."""
    if not call.has_tensor("other") and call.arguments.get("rounding_mode") is None:
        divisor = call.number("other")
        half, exponent = math.frexp(divisor.value)
        if not divisor.name and abs(half) == 0.5 and abs(exponent) < 100:
            return simplify.scaled(call.tensor("self"), Scalar(1 / divisor.value))
    raise RefusalError(f"{call.name} by something other than a power of two")


def _sum(sign: int) -> "Rule":
    def rule(call: Call) -> Expression:
        if not call.has_tensor("other"):
            raise RefusalError(f"{call.name} of a number")
        other = simplify.scaled(call.tensor("other"), Scalar(sign))
        return Added(call.tensor("self"), simplify.scaled(other, call.number("alpha")))

    return rule


def _diagonal(call: Call) -> Diagonal:
    x = call.tensor("self")
    if len(x.shape) != 1 or call.arguments["offset"] != 0:
        raise RefusalError(call.name)
    return Diagonal(x)


Rule: TypeAlias = Callable[[Call], Expression | Diagonal]

RULES: Final[dict[Any, Rule]] = {
    **dict.fromkeys(
        (_aten.detach, _aten.alias, _aten.clone, _aten._to_copy, _aten.lift_fresh), lambda call: call.tensor("self")
    ),
    **dict.fromkeys((_aten.view, _aten._unsafe_view, _aten._reshape_alias, _aten.unsqueeze, _aten.squeeze), _reshape),
    **dict.fromkeys((_aten.unsqueeze_, _aten.squeeze_), _reshape),  # torch's own matmul calls them on its result
    _aten.expand: lambda call: simplify.expand(call.tensor("self"), tuple(call.result.shape)),
    _aten.t: _t,
    _aten.transpose: _transpose,
    _aten.permute: _permute,
    _aten.slice: _slice,
    _aten.mm: _product("self", "mat2"),
    _aten.bmm: _product("self", "mat2"),
    _aten.mv: _product("self", "vec"),
    _aten.dot: _product("self", "tensor"),
    _aten.addmm: _added_product("mat1", "mat2"),
    _aten.addmv: _added_product("mat", "vec"),
    _aten.baddbmm: _added_product("batch1", "batch2"),
    _aten.mul: _multiply,
    _aten.div: _divide,
    _aten.neg: lambda call: simplify.scaled(call.tensor("self"), Scalar(-1)),
    _aten.add: _sum(1),
    _aten.sub: _sum(-1),
    _aten.triu: lambda call: Triangle(call.tensor("self"), True, call.arguments["diagonal"]),
    _aten.tril: lambda call: Triangle(call.tensor("self"), False, call.arguments["diagonal"]),
    _aten.diag_embed: _diagonal,
}

# These write their result over the elements of their first argument.
IN_PLACE: Final[dict[Any, Rule]] = {
    getattr(_aten, f"{name}_"): RULES[getattr(_aten, name)]
    for name in ("mul", "div", "neg", "add", "sub", "triu", "tril")
}
