"""A product in a graph with what follows it, as far as one launch of ours can do that.

The graph is Inductor's after differentiation. `with_what_follows` walks from a product along its only user, and on:
views that leave rows whole, conversions, a factor, a bias, an activation, a residual. Nobody else may want a value on
the way. Of the places where it could stop it names those that are worth it: where Inductor writes a kernel for what
comes next anyway, that kernel has an activation or a conversion for nothing, and reads less before it.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

import torch
from torch.fx import Node

from tilesmith.inductor import activation
from tilesmith.inductor.activation import convert
from tilesmith.inductor.sizes import are_same, is_one

_aten = torch.ops.aten
_VIEWS: Final = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
_ADDITIONS: Final = (_aten.add.Tensor, _aten.sub.Tensor)
_FACTORS: Final = (_aten.mul.Tensor, _aten.div.Tensor)
_LOOPS: Final = frozenset(
    {"copy_", "sum", "mean", "amax", "amin", "max", "min", "var_mean", "var", "argmax", "argmin", "any", "all"}
)
_LAYOUTS: Final = frozenset(
    {"view", "reshape", "_unsafe_view", "permute", "expand", "slice", "select", "unsqueeze", "squeeze"}
)

# The overloads that are taken, each with its name in settings, and how many arguments are before the operands.
PRODUCTS: Final[dict[Any, tuple[str, int]]] = {
    _aten.mm.default: ("mm", 0),
    _aten.bmm.default: ("bmm", 0),
    _aten.addmm.default: ("addmm", 1),
    _aten.baddbmm.default: ("baddbmm", 1),
}
_WITH_OUT_DTYPE: Final = {_aten.mm.dtype: "mm", _aten.bmm.dtype: "bmm"}


@dataclass(frozen=True, slots=True)
class Chain:
    """What one launch computes: `activation(scale * a @ b + bias) + residual_scale * residual`."""

    product: Node
    operator: str  # of the product, among settings.OPERATORS
    a: Node
    b: Node
    end: Node  # whose value it is
    bias: Node | None = None
    residual: Node | None = None
    activation: str | None = None
    scale: float = 1.0
    residual_scale: float = 1.0
    view: Node | None = None  # that gave the end its shape, if it is not the product's
    is_transposed: bool = False  # a matrix, read the other way round
    is_bare: bool = True  # nothing is done to the sums yet, but converting them

    @property
    def out_dtype(self) -> torch.dtype:
        return value_of(self.end).dtype

    @property
    def is_widened(self) -> bool:
        return self.out_dtype != value_of(self.a).dtype


def value_of(node: Node) -> torch.Tensor:
    """The fake tensor that stands for a node's value."""
    return node.meta["val"]  # type: ignore[no-any-return]


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def start(node: Node) -> Chain | None:
    """The chain of a product alone; None if it is none that we know."""
    if node.op != "call_function" or not all(map(is_tensor, (node, *node.all_input_nodes))):
        return None
    if node.target in _WITH_OUT_DTYPE:
        a, b = node.args[:2]
        assert isinstance(a, Node) and isinstance(b, Node)
        return Chain(node, _WITH_OUT_DTYPE[node.target], a, b, node)
    if node.target not in PRODUCTS:
        return None
    operator, first = PRODUCTS[node.target]
    a, b = node.args[first : first + 2]
    assert isinstance(a, Node) and isinstance(b, Node)
    chain = Chain(node, operator, a, b, node)
    return chain if first == 0 else _with_addend(chain, node)


def _with_addend(chain: Chain, node: Node) -> Chain | None:
    addend = node.args[0]
    beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if not isinstance(addend, Node) or not _is_factor(beta) or not _is_factor(alpha) or alpha == 0:
        return None
    chain = replace(chain, scale=float(alpha), is_bare=False)
    if beta == 0:
        return chain
    if beta == 1 and value_of(addend).dim() == 1 and are_same(value_of(addend).shape, value_of(node).shape[-1:]):
        return replace(chain, bias=addend)
    return replace(chain, residual=addend, residual_scale=float(beta))


def _is_factor(x: object) -> TypeGuard[float]:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= torch.finfo(torch.float32).max


def with_what_follows(chain: Chain) -> list[Chain]:
    """The chain with as much of what follows as is worth it, and then with less, to the product alone."""
    found = [chain]
    while (following := _step(chain)) is not None:
        chain = following
        if _is_worth_it(chain):
            found.append(chain)
    return found[::-1]


def _is_worth_it(chain: Chain) -> bool:
    users = tuple(chain.end.users)
    if not all(map(_is_loop, users)):
        return True
    if chain.is_widened or chain.activation is not None:
        return chain.residual is not None and len(users) > 1
    return chain.residual is None or len(users) > 1


def _is_loop(node: Node) -> bool:
    """Whether Inductor writes a kernel for it, into which what it reads can be fused."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target.overloadpacket.__name__
    if name in _LAYOUTS:
        return bool(node.users) and all(map(_is_loop, node.users))
    return node.target is convert or torch.Tag.pointwise in node.target.tags or name in _LOOPS


def _step(chain: Chain) -> Chain | None:
    """The chain with one thing more; None where it has to end."""
    types = {value_of(chain.a).dtype, torch.float32}
    if chain.activation is None and chain.residual is None and not chain.is_transposed:
        found = activation.find(chain.end, types)
        if found is not None:
            return replace(chain, end=found[0], activation=found[1], is_bare=False)
    if len(chain.end.users) != 1:
        return None
    (user,) = chain.end.users
    if user.op != "call_function" or not is_tensor(user):
        return None
    if user.target is convert:
        return replace(chain, end=user) if value_of(user).dtype in types else None
    if user.target is _aten.permute.default and value_of(user).dim() == 2 and chain.is_bare and chain.view is None:
        turned = [int(each) % 2 for each in user.args[1]] == [1, 0]  # type: ignore[union-attr, arg-type]
        return replace(chain, end=user, is_transposed=chain.is_transposed != turned)
    if chain.is_transposed:
        return None
    if user.target in _VIEWS:
        keeps_rows = value_of(user).dim() > 0 and are_same(value_of(user).shape[-1:], value_of(chain.end).shape[-1:])
        return replace(chain, end=user, view=user) if keeps_rows else None
    if user.target in _FACTORS:
        return _with_factor(chain, user)
    if user.target in _ADDITIONS:
        return _with_sum(chain, user)
    return None


def _with_factor(chain: Chain, user: Node) -> Chain | None:
    first, second = user.args[:2]
    is_quotient = user.target is _aten.div.Tensor
    factor = second if first is chain.end else first
    if not _is_factor(factor) or (is_quotient and first is not chain.end) or factor == 0 or not chain.is_bare:
        return None
    if value_of(user).dtype != value_of(chain.end).dtype:
        return None
    scale = chain.scale / factor if is_quotient else chain.scale * factor
    return replace(chain, end=user, scale=float(scale))


def _with_sum(chain: Chain, user: Node) -> Chain | None:
    first, second = user.args[:2]
    alpha = user.kwargs.get("alpha", 1)
    if not is_tensor(first) or not is_tensor(second) or first is second or not _is_factor(alpha):
        return None
    assert isinstance(first, Node) and isinstance(second, Node)
    added, sign = (second, -1.0 if user.target is _aten.sub.Tensor else 1.0) if first is chain.end else (first, 1.0)
    if first is not chain.end and (user.target is _aten.sub.Tensor or alpha != 1):
        return None
    dtype, value = value_of(user).dtype, value_of(added)
    if dtype not in (value_of(chain.a).dtype, torch.float32) or value.dtype not in (value_of(chain.a).dtype, dtype):
        return None
    if value.device != value_of(user).device or not are_same(value_of(user).shape, value_of(chain.end).shape):
        return None
    factor = sign * float(alpha)
    if _is_row(value, value_of(user)) and chain.bias is None and chain.activation is None and factor == 1:
        return replace(chain, end=user, bias=added, is_bare=False)
    if chain.residual is not None or not are_same(value.shape, value_of(user).shape):
        return None
    return replace(chain, end=user, residual=added, residual_scale=factor, is_bare=False)


def _is_row(value: torch.Tensor, of: torch.Tensor) -> bool:
    """Whether it is one row, added to all rows."""
    return value.dim() > 0 and are_same(value.shape[-1:], of.shape[-1:]) and all(map(is_one, value.shape[:-1]))
