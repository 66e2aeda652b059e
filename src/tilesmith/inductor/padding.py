"""Products that Inductor padded, as they were before.

Where lines of an operand or of the result start at odd addresses, Inductor pads operands with zeros and takes a part of
a longer result. Our kernels store lines of any length, so the result itself can be theirs; and of an operand nothing
but its lines has to be longer, in one copy for all products that read it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from tilesmith.core.checks import SIXTEEN_BITS
from tilesmith.core.problem import ALIGNMENT
from tilesmith.inductor.chain import PRODUCTS, is_tensor, value_of
from tilesmith.inductor.sizes import are_same
from tilesmith.torch_ops.product import aligned

_aten = torch.ops.aten
_TURNS = (_aten.permute.default, _aten.transpose.int, _aten.t.default)


@dataclass(frozen=True, slots=True)
class Padded:
    """A product of padded operands, and the part of it that is wanted; nothing else reads it."""

    product: Node
    part: Node
    arguments: tuple[Any, ...]  # of the product as it was

    def insert(self, graph: Graph) -> Node:
        """Puts the product as it was in the place of the part, with operands that TMA can take."""
        *addends, a, b = self.arguments
        a, b = (with_aligned_lines(graph, each, self.product) for each in (a, b))
        with graph.inserting_before(self.part):
            target: Any = self.product.target
            new = graph.call_function(target, (*addends, a, b), dict(self.product.kwargs))
            value = value_of(self.part)
            new.meta |= self.part.meta | {"val": value.new_empty(value.shape)}
        self.part.replace_all_uses_with(new)
        return new

    def undo(self, graph: Graph, new: Node) -> None:
        new.replace_all_uses_with(self.part)
        erase_unused(graph, new)


def padded(node: Node) -> Padded | None:
    """What a product was before it was padded; None if it was not."""
    if node.target not in PRODUCTS:
        return None
    first = PRODUCTS[node.target][1]
    a, b = (_without_zeros(each) for each in node.args[first : first + 2])
    if a is None or b is None or (a, b) == tuple(node.args[first : first + 2]):
        return None
    if not are_same(value_of(a).shape[-1:], value_of(b).shape[-2:-1]):
        return None
    wanted = (*value_of(a).shape[:-1], value_of(b).shape[-1])
    part = _part(node, wanted)
    if part is None:
        return None
    addends = [_first_of(each, wanted) for each in node.args[:first]]
    return None if None in addends else Padded(node, part, (*addends, a, b))


def _without_zeros(node: Any) -> Node | None:
    """What was padded with zeros behind its last rows and columns, or else the node itself."""
    if not is_tensor(node):
        return None
    if node.target is not _aten.constant_pad_nd.default or node.kwargs:
        return node  # type: ignore[no-any-return]
    source, widths, *value = node.args
    is_inductors = all(isinstance(width, int) and 0 <= width < _granule(value_of(node)) for width in widths)
    is_behind = not any(widths[::2]) and not any(widths[4:]) and not any(value)
    return source if is_inductors and is_behind and is_tensor(source) else None


def _part(node: Node, wanted: tuple[Any, ...]) -> Node | None:
    """The first rows and columns of a product, that so many slices take of it."""
    while not are_same(value_of(node).shape, wanted):
        if len(node.users) != 1:
            return None
        (user,) = node.users
        if user.target is not _aten.slice.Tensor or len(user.args) > 4 or user.kwargs or not is_tensor(user):
            return None
        start, step = (*user.args[2:3], 0)[0], (*user.args[4:5], 1)[0]
        if start not in (0, None) or step != 1:
            return None
        node = user
    return node


def _first_of(addend: Any, wanted: tuple[Any, ...]) -> Node | None:
    """What is added to the part that is wanted, which was made longer by what stands behind it."""
    while is_tensor(addend) and addend.target is _aten.cat.default:
        addend = addend.args[0][0]
    if not is_tensor(addend):
        return None
    value = value_of(addend)
    fits = value.dim() in (1, len(wanted)) and are_same(value.shape, wanted[-value.dim() :])
    return addend if fits else None


def with_aligned_lines(graph: Graph, operand: Node, reader: Node) -> Node:
    """The operand, or where its lines are not aligned a copy whose lines are: before the first product that reads it,
    for all of them."""
    turns, base = [], operand
    while base.target in _TURNS and is_tensor(base.args[0]):
        turns.append(base)
        base = base.args[0]  # type: ignore[assignment]
    if not _can_be_aligned(value_of(base)):
        return operand
    copy = next((each for each in base.users if each.target is aligned), None)
    with graph.inserting_before(reader):
        copy = copy or _called(graph, aligned, (base,))
        for turn in reversed(turns):
            copy = _called(graph, turn.target, (copy, *turn.args[1:]))
    return copy


def _called(graph: Graph, target: Any, arguments: tuple[Any, ...]) -> Node:
    node = graph.call_function(target, arguments)
    first, *rest = arguments
    node.meta["val"] = target(value_of(first), *rest)
    return node


def _can_be_aligned(value: torch.Tensor) -> bool:
    numbers = (*value.shape, *value.stride())
    if value.dtype not in SIXTEEN_BITS or value.dim() < 2 or any(isinstance(each, torch.SymInt) for each in numbers):
        return False
    return value.is_contiguous() and value.shape[-1] % _granule(value) != 0


def _granule(value: torch.Tensor) -> int:
    """Elements from one address that TMA can take to the next."""
    return ALIGNMENT // value.dtype.itemsize


def erase_unused(graph: Graph, node: Node) -> None:
    """Takes a node that nobody reads any more out of the graph, and of what it read that which nobody else does."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not node._erased and not node.users and node.op == "call_function" and not node.is_impure():
            waiting += node.all_input_nodes
            graph.erase_node(node)
