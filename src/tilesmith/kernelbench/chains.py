"""Operations of a graph that one kernel does together: those on elements, and sums, extremes and norms of rows or of
groups of channels, whatever stands between them. They are taken together where they meet in one result and nobody else
needs what is in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.fx import Node

from tilesmith.kernelbench.chain_kernel import Chain, chain_of
from tilesmith.kernelbench.chain_rules import UnfitError, is_dropout, is_first_of_pair, is_pair, is_same, launches_of

_aten: Final = torch.ops.aten


def chains_of(nodes: Sequence[Node], settings: Mapping[float, str]) -> Iterator[Chain]:
    """The chains of a graph's operations. `settings` are numbers that may be others in other models."""
    search = _Search(
        places={node: i for i, node in enumerate(nodes)},
        changing=[node for node in nodes if _changes_floats(node)],
        settings=settings,
    )
    for last in reversed(nodes):
        if last in search.taken or last.op != "call_function" or not last.users or is_same(last) or is_pair(last):
            continue
        chain = search.grown(last)
        if chain is not None and sum(map(launches_of, chain.nodes)) > 1:
            search.taken.update(chain.nodes)
            yield chain


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the chains of a graph."""

    places: Mapping[Node, int]  # of its operations
    changing: Sequence[Node]  # those that change a tensor in place
    settings: Mapping[float, str]
    taken: set[Node] = field(default_factory=set)  # by chains that were found

    def grown(self, last: Node) -> Chain | None:
        """The chain of a result, as long as it gets."""
        chain = self._built(_with_needed(last))
        refused: set[Node] = set()
        while chain is not None:
            own = set(chain.nodes)
            new = next((x for x in _inputs(chain) if self._may_join(x, own) and x not in refused), None)
            if new is None:
                return self._without_idle(chain) if _is_differentiable(chain) else None
            longer = self._built(sorted([*own, *_with_needed(new)], key=self.places.__getitem__))
            if longer is None:
                refused.add(new)
            else:
                chain = longer
        return None

    def _without_idle(self, chain: Chain) -> Chain | None:
        """The same without dropouts that do nothing and come first: so it is the same in training and in evaluation."""
        own = set(chain.nodes)
        idle = {node for node in chain.nodes if is_dropout(node) and own.isdisjoint(node.all_input_nodes)}
        return self._built([node for node in chain.nodes if node not in idle]) if idle else chain

    def _may_join(self, node: Node, own: set[Node]) -> bool:
        is_free = node in self.places and node not in own and node not in self.taken
        return is_free and _users(node) <= own

    def _built(self, nodes: Sequence[Node]) -> Chain | None:
        try:
            return None if self._is_changed_meanwhile(nodes) else chain_of(nodes, self.settings)
        except UnfitError:
            return None

    def _is_changed_meanwhile(self, nodes: Sequence[Node]) -> bool:
        """Whether an operation in place stands between these, or is one of them and changes what others have."""
        for node in self.changing:
            if self.places[nodes[0]] <= self.places[node] <= self.places[nodes[-1]]:
                changed: Any = node.args[0]
                if node not in nodes or changed not in nodes or not launches_of(changed) or len(changed.users) > 1:
                    return True
        return False


def _inputs(chain: Chain) -> Iterator[Node]:
    """What a chain's nodes are given, the last one's first."""
    for node in reversed(chain.nodes):
        yield from node.all_input_nodes


def _with_needed(node: Node) -> list[Node]:
    """A node, after what has no place in a chain without it: what it changes in place, or the operation that gives an
    extreme and its index if it is that extreme."""
    needed: Any = node.args[0] if is_first_of_pair(node) or _changes_floats(node) else None
    return [needed, node] if isinstance(needed, Node) and _users(needed) == {node} else [node]


def _users(node: Node) -> set[Node]:
    """Those that need what a node gives."""
    return {user for user in node.users if user.users or user.op == "output"}


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
