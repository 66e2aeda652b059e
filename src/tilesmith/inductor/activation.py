"""Which activation a piece of a graph computes, however it is written.

torch takes gelu and silu apart before our pass sees them, and not in every release into the same operators. So the
piece is run in doubles on a set of points, and compared with the activations that the kernels have. Conversions between
types are left out: the kernels compute in float32 from sums that are not rounded.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node

from tilesmith.core.epilogue import ACTIVATIONS
from tilesmith.torch_ops.linear import finished

convert: Final = torch.ops.prims.convert_element_type.default

_MAX_NODES: Final = 16  # of a piece: gelu's approximation by tanh has eleven


def find(root: Node, types: Iterable[torch.dtype]) -> tuple[Node, str] | None:
    """The node that is an activation of the root, and its name, if nothing else wants the root or a value in between.
    `types` are those that values in between may be converted to."""
    piece = _piece(root, frozenset(types))
    for end in piece:
        inner = _between(root, end)
        users = {user for node in (root, *inner - {end}) for user in node.users}
        if users <= inner and (name := _name_of(root, end, piece)) is not None:
            return end, name
    return None


def _piece(root: Node, types: frozenset[torch.dtype]) -> list[Node]:
    """The nodes that compute something of each element of the root alone, in an order in which they can be run."""
    found: dict[Node, None] = {root: None}
    waiting = list(root.users)
    while waiting and len(found) <= _MAX_NODES:
        node = waiting.pop(0)
        if node in found or not _is_elementwise(node, types):
            continue
        if all(each in found for each in node.all_input_nodes):  # or else it comes again, with its last operand
            found[node] = None
            waiting += node.users
    del found[root]
    return list(found)


def _is_elementwise(node: Node, types: frozenset[torch.dtype]) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target is convert:
        return node.args[1] in types
    return torch.Tag.pointwise in node.target.tags and torch.Tag.nondeterministic_seeded not in node.target.tags


def _between(root: Node, end: Node) -> set[Node]:
    """The nodes on the ways from the root, without it, to the end, with it."""
    found, waiting = set(), [end]
    while waiting:
        node = waiting.pop()
        if node is not root and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


@cache
def _points() -> Tensor:
    few = torch.tensor([0.0, 1e-30, -1e-30, 50.0, -50.0, 1e4, -1e4, 1e30, -1e30, float("nan")], dtype=torch.float64)
    return torch.cat([torch.linspace(-12, 12, 241, dtype=torch.float64), few])


@cache
def _values() -> dict[str, Tensor]:
    return {name: finished(_points(), name, None) for name in ACTIVATIONS}


def _name_of(root: Node, end: Node, piece: list[Node]) -> str | None:
    values: dict[Node, Tensor] = {root: _points()}
    for node in piece:
        assert callable(node.target)
        arguments: Any = torch.fx.node.map_arg(node.args, values.__getitem__)
        options: Any = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
        try:
            values[node] = arguments[0] if node.target is convert else node.target(*arguments, **options)
        except (RuntimeError, NotImplementedError):  # an operator that doubles have not
            return None
        if node is end:
            break
    for name, expected in _values().items():
        if values[end].dtype == torch.float64 and torch.allclose(
            values[end], expected, rtol=1e-9, atol=1e-12, equal_nan=True
        ):
            return name
    return None
