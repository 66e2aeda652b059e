"""Operations of a graph that one kernel does together: those on elements, and sums, extremes and norms of rows or of
groups of channels, whatever stands between them. They are taken together where they meet in one result and nobody else
needs what is in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import Node

from tilesmith.kernelbench.chain_kernel import Chain, chain_of
from tilesmith.kernelbench.chain_rules import UnfitError, is_first_of_pair, is_pair, is_same, launches_of

_aten: Final = torch.ops.aten


def chains_of(nodes: Sequence[Node], settings: Mapping[float, str]) -> Iterator[Chain]:
    """The chains of a graph's operations. `settings` are numbers that may be others in other models."""
    places = {node: i for i, node in enumerate(nodes)}
    taken: set[Node] = set()
    for last in reversed(nodes):
        if last in taken or last.op != "call_function" or not last.users or is_same(last) or is_pair(last):
            continue
        chain = _grown(last, places, taken, settings)
        if chain is not None and sum(map(launches_of, chain.nodes)) > 1:
            taken.update(chain.nodes)
            yield chain


def _grown(last: Node, places: Mapping[Node, int], taken: set[Node], settings: Mapping[float, str]) -> Chain | None:
    """The chain of a result, as long as it gets."""
    chain = _built(_with_needed(last), places, settings)
    refused: set[Node] = set()
    while chain is not None:
        own = set(chain.nodes)
        inputs = {x for node in chain.nodes for x in node.all_input_nodes} - own - taken - refused
        new = next((x for x in inputs if x in places and _users(x) <= own), None)
        if new is None:
            return chain if _is_differentiable(chain) else None
        longer = _built(sorted([*own, *_with_needed(new)], key=places.__getitem__), places, settings)
        if longer is None:
            refused.add(new)
        else:
            chain = longer
    return None


def _with_needed(node: Node) -> list[Node]:
    """A node, after what has no place in a chain without it: what it changes in place, or the operation that gives an
    extreme and its index if it is that extreme."""
    needed: Any = node.args[0] if is_first_of_pair(node) or _changes_floats(node) else None
    return [needed, node] if isinstance(needed, Node) and _users(needed) == {node} else [node]


def _users(node: Node) -> set[Node]:
    """Those that need what a node gives."""
    return {user for user in node.users if user.users or user.op == "output"}


def _built(nodes: Sequence[Node], places: Mapping[Node, int], settings: Mapping[float, str]) -> Chain | None:
    try:
        if _is_changed_meanwhile(nodes, places):
            return None
        return chain_of(nodes, settings)
    except UnfitError:
        return None


def _is_changed_meanwhile(nodes: Sequence[Node], places: Mapping[Node, int]) -> bool:
    """Whether an operation in place stands between these, or is one of them and changes what is not theirs alone."""
    own = set(nodes)
    first, last = places[nodes[0]], places[nodes[-1]]
    for node, place in places.items():
        if first <= place <= last and _changes_floats(node):
            changed: Any = node.args[0]
            if node not in own or changed not in own or not launches_of(changed) or len(changed.users) > 1:
                return True
    return False


def _changes_floats(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    value = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _is_differentiable(chain: Chain) -> bool:
    """Whether gradients flow to something that it is given, and not only past a `detach`."""
    own = set(chain.nodes)
    reached = {chain.nodes[-1]}
    for node in reversed(chain.nodes):
        if node in reached and node.target is not _aten.detach.default:
            reached.update(node.all_input_nodes)
    return bool(reached - own)
