"""What a problem's forward computes: a tree of frozen values that can travel as JSON.

The leaves are arguments of forward, parameters of the model and numbers. Every node has a shape and a
type, and `evaluate` says with plain torch what it means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

import torch

Shape: TypeAlias = tuple[int, ...]
Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor among the arguments of forward."""

    name: str
    index: int  # its position, self not counted
    shape: Shape
    dtype: torch.dtype
    strides: Shape


@dataclass(frozen=True, slots=True)
class Attribute:
    """A parameter or buffer of the model."""

    path: str  # e.g. "linear.weight"
    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Scalar:
    """A Python number: a constant, or an argument of forward, which has a name and an index.

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


@dataclass(frozen=True, slots=True)
class View:
    """The same elements at other places, without arithmetic.

    All of torch's spellings become three: "permute", whose arguments are the dimensions; "reshape", which also
    adds and removes sizes of one; and "expand"; their arguments are the whole new shape.
    """

    x: "Expression"
    op: Literal["permute", "reshape", "expand"]
    arguments: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return tuple(self.x.shape[i] for i in self.arguments) if self.op == "permute" else self.arguments

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype


@dataclass(frozen=True, slots=True)
class Product:
    """torch.matmul: vectors, matrices, or batches of matrices that are broadcast."""

    a: "Expression"
    b: "Expression"

    @property
    def shape(self) -> Shape:
        rows, columns = self.a.shape[-2:-1], self.b.shape[-1:] if len(self.b.shape) > 1 else ()
        return (*torch.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2]), *rows, *columns)

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tensor times one number."""

    x: "Expression"
    factor: Scalar

    @property
    def shape(self) -> Shape:
        return self.x.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.result_type(_stand_in(self.x), self.factor.value)


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Two tensors, broadcast, element by element: a factor for every row, for example."""

    x: "Expression"
    y: "Expression"

    @property
    def shape(self) -> Shape:
        return tuple(torch.broadcast_shapes(self.x.shape, self.y.shape))

    @property
    def dtype(self) -> torch.dtype:
        return torch.result_type(_stand_in(self.x), _stand_in(self.y))


@dataclass(frozen=True, slots=True)
class Added:
    """The sum of two tensors, broadcast: a bias, for example."""

    x: "Expression"
    y: "Expression"

    @property
    def shape(self) -> Shape:
        return tuple(torch.broadcast_shapes(self.x.shape, self.y.shape))

    @property
    def dtype(self) -> torch.dtype:
        return torch.result_type(_stand_in(self.x), _stand_in(self.y))


@dataclass(frozen=True, slots=True)
class Triangle:
    """torch.triu or torch.tril: zero below (or above) a diagonal of the last two dimensions."""

    x: "Expression"
    upper: bool
    diagonal: int = 0

    @property
    def shape(self) -> Shape:
        return self.x.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype


Leaf: TypeAlias = Input | Attribute | Scalar
Expression: TypeAlias = Leaf | View | Product | Scaled | Multiplied | Added | Triangle

_NODES: Final = {
    node.__name__: node for node in (Input, Attribute, Scalar, View, Product, Scaled, Multiplied, Added, Triangle)
}


def _stand_in(x: Expression) -> torch.Tensor:
    """A tensor without memory, for torch's rules of type promotion, which ask how many dimensions there are."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def to_dict(node: Expression) -> dict[str, Any]:
    """A node as JSON can hold it.

    >>> to_dict(Scaled(Attribute("w", (2,), torch.float32), Scalar(0.5)))["x"]
    {'node': 'Attribute', 'path': 'w', 'shape': [2], 'dtype': 'float32'}
    """

    def plain(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return str(x).removeprefix("torch.")
        if isinstance(x, tuple):
            return list(x)
        return to_dict(x) if isinstance(x, Expression) else x

    return {"node": type(node).__name__} | {field.name: plain(getattr(node, field.name)) for field in fields(node)}


def from_dict(data: Mapping[str, Any]) -> Expression:
    """The node of which `to_dict` made this."""

    def value(name: str, x: Any) -> Any:
        if name == "dtype":
            return getattr(torch, x)
        if isinstance(x, list):
            return tuple(x)
        return from_dict(x) if isinstance(x, dict) else x

    node = _NODES[data["node"]]
    return node(**{name: value(name, x) for name, x in data.items() if name != "node"})


def children(x: Expression) -> tuple[Expression, ...]:
    """The nodes that a node is made of."""
    match x:
        case View(y) | Triangle(y):
            return (y,)
        case Scaled(y, factor):
            return y, factor
        case Product(y, z) | Multiplied(y, z) | Added(y, z):
            return y, z
        case _:
            return ()


def evaluate(
    x: Expression, inputs: Sequence[torch.Tensor | Number], attributes: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """What an expression means: its value for these arguments of forward and these parameters, by path."""

    def tensor(node: Expression) -> torch.Tensor:
        return evaluate(node, inputs, attributes)

    match x:
        case Input():
            value = inputs[x.index]
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"argument {x.name} must be a tensor, not {value!r}")
            return value
        case Attribute():
            return (attributes or {})[x.path]
        case View(y, "permute", dimensions):
            return tensor(y).permute(dimensions)
        case View(y, "reshape", shape):
            return tensor(y).reshape(shape)
        case View(y, _, shape):
            return tensor(y).expand(shape)
        case Product(a, b):
            return torch.matmul(tensor(a), tensor(b))
        case Scaled(y, factor):
            return torch.mul(tensor(y), factor.value if factor.index is None else inputs[factor.index])
        case Multiplied(y, z):
            return torch.mul(tensor(y), tensor(z))
        case Added(y, z):
            return torch.add(tensor(y), tensor(z))
        case Triangle(y, upper, diagonal):
            return (torch.triu if upper else torch.tril)(tensor(y), diagonal)
        case Scalar():
            return torch.tensor(x.value if x.index is None else inputs[x.index])


def show(x: Expression) -> str:
    """An expression as a person writes it.

    >>> a, b = (Input(name, i, (4, 4), torch.float32, (4, 1)) for i, name in enumerate("AB"))
    >>> show(Triangle(Product(View(a, "permute", (1, 0)), b), upper=True))
    'triu(A.T @ B)'
    """

    def inner(node: Expression) -> str:
        return f"({show(node)})" if isinstance(node, Product | Scaled | Multiplied | Added) else show(node)

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
            return f"{show(y)} + {inner(z) if isinstance(z, Added) else show(z)}"
        case Triangle(y, upper, diagonal):
            return f"{'triu' if upper else 'tril'}({show(y)}{f', {diagonal}' if diagonal else ''})"


def _show_view(view: View) -> str:
    sizes, count = view.arguments, len(view.arguments)
    if swaps_last_two(view):
        return ".T" if count == 2 else ".mT"
    if view.op == "reshape":
        for i in range(count):
            if sizes[i] == 1 and sizes[:i] + sizes[i + 1 :] == view.x.shape:
                return f".unsqueeze({i})"
    return f".{view.op}({', '.join(map(str, sizes))})"


def swaps_last_two(x: Expression) -> bool:
    """Whether a node is a transpose of matrices."""
    if not isinstance(x, View) or x.op != "permute" or len(x.arguments) < 2:
        return False
    count = len(x.arguments)
    return x.arguments == (*range(count - 2), count - 1, count - 2)
