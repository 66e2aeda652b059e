"""What a problem's forward computes: a graph of frozen values that can travel as JSON.

The leaves are arguments of forward, parameters of the model and numbers. Every node has a shape and a
type, and `evaluate` says with plain torch what it means. Equal nodes are one object: a value that is used twice is
one node with two users, and no function here visits it twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args
from weakref import WeakValueDictionary

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
Number: TypeAlias = int | float

_interned: Final[WeakValueDictionary[Any, Any]] = WeakValueDictionary()


class _Interned(type):
    """Gives equal nodes the same identity, which is then all that a comparison has to look at."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        node = super().__call__(*args, **kwargs)
        values = _fields(node).values()
        object.__setattr__(node, "children", tuple(x for x in values if isinstance(x, _Node)))
        return _interned.setdefault((cls, *map(_key, values)), node)


class _Node(metaclass=_Interned):
    shape: Shape
    dtype: torch.dtype
    children: tuple["Expression", ...]  # the nodes that this one is made of

    def _is(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Sets what follows from a node's fields."""
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", dtype)


def _fields(node: Any) -> dict[str, Any]:
    return {x.name: getattr(node, x.name) for x in fields(node)}


def _key(value: Any) -> Any:
    """A number with its type: 2 and 2.0 are different factors, 0.0 and -0.0 too."""
    return (type(value), repr(value)) if isinstance(value, int | float) else value


@dataclass(frozen=True, eq=False)
class Input(_Node):
    """A tensor among the arguments of forward."""

    name: str
    index: int  # its position, self not counted
    shape: Shape
    dtype: torch.dtype
    strides: Shape


@dataclass(frozen=True, eq=False)
class Attribute(_Node):
    """A parameter or buffer of the model."""

    path: str  # e.g. "linear.weight"
    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Scalar(_Node):
    """A Python number: a constant, an argument of forward, which has a name and an index, or an attribute of the model,
    which has the name "self.NAME".

    The value of an argument is the one that get_inputs gave; forward may be called with another. The type is the widest
    of its kind: as a factor it does not widen a tensor of the same kind.
    """

    value: Number
    name: str = ""
    index: int | None = None

    def __post_init__(self) -> None:
        self._is((), torch.float64 if isinstance(self.value, float) else torch.int64)


@dataclass(frozen=True, eq=False)
class View(_Node):
    """Elements at other places, without arithmetic.

    All of torch's spellings become three: "permute", whose arguments are the dimensions; "reshape", which also
    adds and removes sizes of one; and "expand"; their arguments are the whole new shape.
    """

    x: "Expression"
    op: Literal["permute", "reshape", "expand"]
    arguments: tuple[int, ...]

    def __post_init__(self) -> None:
        moved = self.op == "permute"
        self._is([self.x.shape[i] for i in self.arguments] if moved else self.arguments, self.x.dtype)


@dataclass(frozen=True, eq=False)
class Product(_Node):
    """torch.matmul: vectors, matrices, or batches of matrices that are broadcast."""

    a: "Expression"
    b: "Expression"

    def __post_init__(self) -> None:
        rows, columns = self.a.shape[-2:-1], self.b.shape[-1:] if len(self.b.shape) > 1 else ()
        batch = torch.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        self._is((*batch, *rows, *columns), self.a.dtype)


@dataclass(frozen=True, eq=False)
class Scaled(_Node):
    """A tensor times one number."""

    x: "Expression"
    factor: Scalar

    def __post_init__(self) -> None:
        self._is(self.x.shape, torch.result_type(_stand_in(self.x), self.factor.value))


@dataclass(frozen=True, eq=False)
class _Elementwise(_Node):
    x: "Expression"
    y: "Expression"

    def __post_init__(self) -> None:
        shape = torch.broadcast_shapes(self.x.shape, self.y.shape)
        self._is(shape, torch.result_type(_stand_in(self.x), _stand_in(self.y)))


class Multiplied(_Elementwise):
    """Two tensors, broadcast, element by element: a factor for every row, for example."""


class Added(_Elementwise):
    """The sum of two tensors, broadcast: a bias, for example."""


@dataclass(frozen=True, eq=False)
class Detached(_Node):
    """Elements as they are, through which no gradient flows."""

    x: "Expression"

    def __post_init__(self) -> None:
        self._is(self.x.shape, self.x.dtype)


@dataclass(frozen=True, eq=False)
class Triangle(_Node):
    """torch.triu or torch.tril: zero below (or above) a diagonal of the last two dimensions."""

    x: "Expression"
    upper: bool
    diagonal: int = 0

    def __post_init__(self) -> None:
        self._is(self.x.shape, self.x.dtype)


Leaf: TypeAlias = Input | Attribute | Scalar
Expression: TypeAlias = Leaf | View | Product | Scaled | Multiplied | Added | Triangle | Detached

_NODES: Final = {node.__name__: node for node in get_args(Expression)}
_ARITHMETIC: Final = (Product, Scaled, Multiplied, Added, Triangle)


def _stand_in(x: Expression) -> Tensor:
    """A tensor without memory, for torch's rules of type promotion, which ask how many dimensions there are."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def to_rows(x: Expression) -> list[dict[str, Any]]:
    """An expression as JSON can hold it: its distinct nodes, which name others by their places before them.

    >>> to_rows(Scaled(Attribute("w", (2,), torch.float32), Scalar(0.5)))[0]
    {'node': 'Attribute', 'path': 'w', 'shape': [2], 'dtype': 'float32'}
    """
    places: dict[Expression, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, tuple):
            return list(value)
        return {"at": places[value]} if isinstance(value, Expression) else value

    rows = []
    for node in nodes(x):
        rows.append({"node": type(node).__name__} | {name: plain(value) for name, value in _fields(node).items()})
        places[node] = len(places)
    return rows


def from_rows(rows: Sequence[Mapping[str, Any]]) -> Expression:
    """The expression of which `to_rows` made this."""
    found: list[Expression] = []

    def value(name: str, x: Any) -> Any:
        if name == "dtype":
            return getattr(torch, x)
        if isinstance(x, list):
            return tuple(x)
        return found[x["at"]] if isinstance(x, dict) else x

    for row in rows:
        node = _NODES[row["node"]]
        found.append(node(**{name: value(name, x) for name, x in row.items() if name != "node"}))
    return found[-1]


def rebuilt(x: Expression, new: Mapping[Expression, Expression]) -> Expression:
    """A node made of others in the place of its own."""
    changed: dict[str, Any] = {name: new[y] for name, y in _fields(x).items() if isinstance(y, Expression)}
    return replace(x, **changed)


def nodes(x: Expression) -> list[Expression]:
    """The distinct nodes of an expression, each after those that it is made of."""
    found: dict[Expression, None] = {}
    stack = [x]
    while stack:
        missing = [child for child in stack[-1].children if child not in found]
        if missing:
            stack += reversed(missing)
        else:
            found.setdefault(stack.pop())
    return list(found)


def shared(*results: Expression) -> list[Expression]:
    """The nodes with arithmetic in them that are used more than once, each after those that it is made of."""
    order = list(dict.fromkeys(node for x in results for node in nodes(x)))
    uses = Counter([*results, *(child for node in order for child in node.children)])
    costly: set[Expression] = set()
    for node in order:
        if isinstance(node, _ARITHMETIC) or not costly.isdisjoint(node.children):
            costly.add(node)
    return [node for node in order if uses[node] > 1 and node in costly]


def evaluate(
    x: Expression, inputs: Sequence[Tensor | Number], attributes: Mapping[str, Tensor] | None = None
) -> Tensor:
    """What an expression means: its value for these arguments of forward and these parameters, by path."""
    values: dict[Expression, Tensor] = {}

    def value_of(node: Expression) -> Tensor:
        match node:
            case Input():
                value = inputs[node.index]
                if not isinstance(value, Tensor):
                    raise TypeError(f"argument {node.name} must be a tensor, not {value!r}")
                return value
            case Attribute():
                return (attributes or {})[node.path]
            case View(y, "permute", dimensions):
                return values[y].permute(dimensions)
            case View(y, "reshape", shape):
                return values[y].reshape(shape)
            case View(y, _, shape):
                return values[y].expand(shape)
            case Product(a, b):
                return torch.matmul(values[a], values[b])
            case Scaled(y, factor):
                return torch.mul(values[y], factor.value if factor.index is None else inputs[factor.index])
            case Multiplied(y, z):
                return torch.mul(values[y], values[z])
            case Added(y, z):
                return torch.add(values[y], values[z])
            case Triangle(y, upper, diagonal):
                return (torch.triu if upper else torch.tril)(values[y], diagonal)
            case Detached(y):
                return values[y].detach()
            case Scalar():
                return torch.tensor(node.value if node.index is None else inputs[node.index])

    for node in nodes(x):
        values[node] = value_of(node)
    return values[x]


def swaps_last_two(x: Expression) -> bool:
    """Whether a node is a transpose of matrices."""
    if not isinstance(x, View) or x.op != "permute" or len(x.arguments) < 2:
        return False
    count = len(x.arguments)
    return x.arguments == (*range(count - 2), count - 1, count - 2)
