"""Expressions as a person writes them."""

import itertools
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeAlias

from tilesmith.kernelbench.expression import (
    Added,
    Attribute,
    Detached,
    Expression,
    Input,
    Multiplied,
    Product,
    Scalar,
    Scaled,
    Triangle,
    View,
    nodes,
    shared,
    swaps_last_two,
)

# A node as text, by the texts of those that it is made of; and which values have a name.
Spell: TypeAlias = Callable[[Expression, Mapping[Expression, str], Container[Expression]], str]


def show(x: Expression) -> str:
    """An expression as a person writes it.

    >>> import torch
    >>> a, b = (Input(name, i, (4, 4), torch.float32, (4, 1)) for i, name in enumerate("AB"))
    >>> show(Triangle(Product(View(a, "permute", (1, 0)), b), upper=True))
    'triu(A.T @ B)'
    >>> show(Added(Product(a, b), Product(a, b)))
    't1 + t1 where t1 = A @ B'
    """
    named = names_of_shared((node.name for node in nodes(x) if isinstance(node, Input | Scalar)), x)
    lines, text = spelled(x, named, _shown)
    return text + (f" where {', '.join(lines)}" if lines else "")


def spelled(x: Expression, named: Mapping[Expression, str], spell: Spell) -> tuple[list[str], str]:
    """A line for each value that has a name, and the text of the expression itself."""
    texts: dict[Expression, str] = {}
    lines = []
    for node in nodes(x):
        texts[node] = spell(node, texts, named)
        if node in named:
            lines.append(f"{named[node]} = {texts[node]}")
            texts[node] = named[node]
    return lines, texts[x]


def names_of_shared(taken: Iterable[str], *results: Expression, prefix: str = "t") -> dict[Expression, str]:
    """Names for the values that are used more than once, in an order of computing, other than those that are taken."""
    avoided = set(taken)
    found = shared(*results)
    free = (name for i in itertools.count(1) if (name := f"{prefix}{i}") not in avoided)
    return dict(zip(found, free, strict=False))


def _shown(x: Expression, texts: Mapping[Expression, str], named: Container[Expression]) -> str:
    def inner(node: Expression) -> str:
        bare = node in named or not isinstance(node, Product | Scaled | Multiplied | Added)
        return texts[node] if bare else f"({texts[node]})"

    match x:
        case Input(name):
            return name
        case Attribute(path):
            return f"self.{path}"
        case Scalar():
            return x.name or repr(x.value)
        case View(y):
            return inner(y) + _show_view(x)
        case Product(a, b):
            return f"{inner(a)} @ {inner(b)}"
        case Scaled(y, z) | Multiplied(y, z):
            return f"{inner(y)} * {inner(z)}"
        case Added(y, z):
            return f"{texts[y]} + {inner(z) if isinstance(z, Added) else texts[z]}"
        case Detached(y):
            return f"{inner(y)}.detach()"
        case Triangle(y, upper, diagonal):
            return f"{'triu' if upper else 'tril'}({texts[y]}{f', {diagonal}' if diagonal else ''})"


def _show_view(view: View) -> str:
    sizes, count = view.arguments, len(view.arguments)
    if swaps_last_two(view):
        return ".T" if count == 2 else ".mT"
    if view.op == "reshape":
        for i in range(count):
            if sizes[i] == 1 and sizes[:i] + sizes[i + 1 :] == view.x.shape:
                return f".unsqueeze({i})"
    return f".{view.op}({', '.join(map(str, sizes))})"
