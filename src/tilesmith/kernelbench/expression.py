"""What a problem's forward computes: a graph of frozen values that can travel as JSON.

The leaves are arguments of forward, parameters of the model and numbers. Every node has a shape and a
type, and `evaluate` says with plain torch what it means. Equal nodes are one object: a value that is used twice is
one node with two users, and no function here visits it twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

import torch

Shape: TypeAlias = tuple[int, ...]
Number: TypeAlias = int | float

_interned: Final[WeakValueDictionary[Any, Any]] = WeakValueDictionary()


class _Interned(type):
    """Gives equal nodes the same identity, which is then all that a comparison has to look at."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        node = super().__call__(*args, **kwargs)
        return _interned.setdefault((cls, *(_key(getattr(node, name)) for name in _arguments(node))), node)


class _Node(metaclass=_Interned):
    __slots__ = ()

    def _is(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Sets what follows from a node's arguments."""
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", dtype)


def _arguments(node: Any) -> list[str]:
    return [x.name for x in fields(node) if x.init]


def _key(value: Any) -> Any:
    """A number with its type: 2 and 2.0 are different factors, 0.0 and -0.0 too."""
    return (type(value), repr(value)) if isinstance(value, int | float) else value


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Input(_Node):
    """A tensor among the arguments of forward."""

    name: str
    index: int  # its position, self not counted
    shape: Shape
    dtype: torch.dtype
    strides: Shape


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Attribute(_Node):
    """A parameter or buffer of the model."""

    path: str  # e.g. "linear.weight"
    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Scalar(_Node):
    """A Python number: a constant, an argument of forward, which has a name and an index, or an attribute of the model,
    which has the name "self.NAME".

    The value of an argument is the one that get_inputs gave; forward may be called with another.
    """

    value: Number
    name: str = ""
    index: int | None = None

    @property
    def shape(self) -> Shape:
        return ()

    @property
    def dtype(self) -> torch.dtype:
        """The widest type of its kind. As a factor it does not widen a tensor of the same kind."""
        return torch.float64 if isinstance(self.value, float) else torch.int64


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class View(_Node):
    """Elements at other places, without arithmetic.

    All of torch's spellings become three: "permute", whose arguments are the dimensions; "reshape", which also
    adds and removes sizes of one; and "expand"; their arguments are the whole new shape.
    """

    x: "Expression"
    op: Literal["permute", "reshape", "expand"]
    arguments: tuple[int, ...]
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        moved = self.op == "permute"
        self._is([self.x.shape[i] for i in self.arguments] if moved else self.arguments, self.x.dtype)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Product(_Node):
    """torch.matmul: vectors, matrices, or batches of matrices that are broadcast."""

    a: "Expression"
    b: "Expression"
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.a.shape[-2:-1], self.b.shape[-1:] if len(self.b.shape) > 1 else ()
        batch = torch.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        self._is((*batch, *rows, *columns), self.a.dtype)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Scaled(_Node):
    """A tensor times one number."""

    x: "Expression"
    factor: Scalar
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self._is(self.x.shape, torch.result_type(_stand_in(self.x), self.factor.value))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Multiplied(_Node):
    """Two tensors, broadcast, element by element: a factor for every row, for example."""

    x: "Expression"
    y: "Expression"
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        shape = torch.broadcast_shapes(self.x.shape, self.y.shape)
        self._is(shape, torch.result_type(_stand_in(self.x), _stand_in(self.y)))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Added(_Node):
    """The sum of two tensors, broadcast: a bias, for example."""

    x: "Expression"
    y: "Expression"
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        shape = torch.broadcast_shapes(self.x.shape, self.y.shape)
        self._is(shape, torch.result_type(_stand_in(self.x), _stand_in(self.y)))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Triangle(_Node):
    """torch.triu or torch.tril: zero below (or above) a diagonal of the last two dimensions."""

    x: "Expression"
    upper: bool
    diagonal: int = 0
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self._is(self.x.shape, self.x.dtype)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Detached(_Node):
    """Elements as they are, through which no gradient flows."""

    x: "Expression"
    shape: Shape = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self._is(self.x.shape, self.x.dtype)


Leaf: TypeAlias = Input | Attribute | Scalar
Expression: TypeAlias = Leaf | View | Product | Scaled | Multiplied | Added | Triangle | Detached

_NODES: Final = {
    node.__name__: node
    for node in (Input, Attribute, Scalar, View, Product, Scaled, Multiplied, Added, Triangle, Detached)
}


_ARITHMETIC: Final = (Product, Scaled, Multiplied, Added, Triangle)


def _stand_in(x: Expression) -> torch.Tensor:
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
        rows.append(
            {"node": type(node).__name__} | {name: plain(getattr(node, name)) for name in _arguments(node)},
        )
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


def children(x: Expression) -> tuple[Expression, ...]:
    """The nodes that a node is made of."""
    match x:
        case View(y) | Triangle(y) | Detached(y):
            return (y,)
        case Scaled(y, factor):
            return y, factor
        case Product(y, z) | Multiplied(y, z) | Added(y, z):
            return y, z
        case _:
            return ()


def nodes(x: Expression) -> list[Expression]:
    """The distinct nodes of an expression, each after those that it is made of."""
    found: dict[Expression, None] = {}
    stack = [x]
    while stack:
        missing = [child for child in children(stack[-1]) if child not in found]
        if missing:
            stack += reversed(missing)
        else:
            found.setdefault(stack.pop())
    return list(found)


def shared(*results: Expression) -> list[Expression]:
    """The nodes with arithmetic in them that are used more than once, each after those that it is made of."""
    order = list(dict.fromkeys(node for x in results for node in nodes(x)))
    uses = Counter([*results, *(child for node in order for child in children(node))])
    costly: set[Expression] = set()
    for node in order:
        if isinstance(node, _ARITHMETIC) or not costly.isdisjoint(children(node)):
            costly.add(node)
    return [node for node in order if uses[node] > 1 and node in costly]


def evaluate(
    x: Expression, inputs: Sequence[torch.Tensor | Number], attributes: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """What an expression means: its value for these arguments of forward and these parameters, by path."""
    values: dict[Expression, torch.Tensor] = {}
    for node in nodes(x):
        values[node] = _evaluated(node, values, inputs, attributes or {})
    return values[x]


def _evaluated(
    x: Expression,
    values: Mapping[Expression, torch.Tensor],
    inputs: Sequence[torch.Tensor | Number],
    attributes: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    match x:
        case Input():
            value = inputs[x.index]
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"argument {x.name} must be a tensor, not {value!r}")
            return value
        case Attribute():
            return attributes[x.path]
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
            return torch.tensor(x.value if x.index is None else inputs[x.index])


def swaps_last_two(x: Expression) -> bool:
    """Whether a node is a transpose of matrices."""
    if not isinstance(x, View) or x.op != "permute" or len(x.arguments) < 2:
        return False
    count = len(x.arguments)
    return x.arguments == (*range(count - 2), count - 1, count - 2)
