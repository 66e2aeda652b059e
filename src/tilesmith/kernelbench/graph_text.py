"""From a graph of torch's operations to the lines of a forward: products are ours, all else is torch's.

A value takes over the name of one that nobody needs any more, so that its memory is free when it is in plain torch.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from tilesmith.kernelbench.products import ProductSpec
from tilesmith.kernelbench.rules import RefusalError
from tilesmith.kernelbench.stand_ins import torchs_own

_aten: Final = torch.ops.aten
_DEVICE: Final = "device"  # the variable of a forward that makes tensors
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)

# What says how a value is, and computes nothing.
_SAYINGS: Final = frozenset(
    {_aten._assert_tensor_metadata.default, _aten._assert_scalar.default, _aten.sym_constrain_range_for_size.default}
)
_INFIX: Final[dict[Any, str]] = {
    _aten.add.Tensor: "+",
    _aten.sub.Tensor: "-",
    _aten.mul.Tensor: "*",
    _aten.div.Tensor: "/",
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
}
_FUNCTIONS: Final[dict[Any, str]] = {
    torch.sym_max: "max",
    torch.sym_min: "min",
    torch.sym_int: "int",
    torch.sym_float: "float",
    torch.sym_not: "not",
}
_ACTIVATIONS: Final[dict[Any, str]] = {
    (_aten.relu.default, ()): "relu",
    (_aten.relu_.default, ()): "relu",
    (_aten.silu.default, ()): "silu",
    (_aten.silu_.default, ()): "silu",
    (_aten.gelu.default, ()): "gelu",
    (_aten.gelu.default, (("approximate", "none"),)): "gelu",
    (_aten.gelu.default, (("approximate", "tanh"),)): "gelu_tanh",
}
_PRODUCTS: Final = (_aten.matmul.default, _aten.mm.default, _aten.bmm.default, _aten.mv.default, _aten.dot.default)
_ADDED_PRODUCTS: Final = (_aten.addmm.default, _aten.baddbmm.default, _aten.addmv.default)
# Of the arguments of torch's operations, those that a machine decides.
_CUDNN: Final = ("cudnn_enabled", "cudnn_enable")
# What is not worth a word in a list of what is left to torch.
_VIEWS: Final = (
    *("view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "t", "expand", "slice", "select", "flatten"),
    *("unflatten", "detach", "alias", "chunk", "split", "split_with_sizes", "unbind", "narrow", "contiguous", "clone"),
    *("numpy_T", "getitem", "expand_as", "view_as", "_unsafe_view", "movedim", "add_", "detach_", "to"),
)


@dataclass(frozen=True, slots=True)
class Lines:
    """A forward as text."""

    text: tuple[str, ...]  # a statement each
    products: tuple[ProductSpec, ...]  # of the sizes that were traced
    parts: frozenset[str]  # of a written module that it needs
    left: Mapping[str, int]  # the operations that are torch's, and how often


@dataclass(slots=True)
class _Names:
    """Names of values, and those that are free again."""

    taken: set[str]
    free: list[str] = field(default_factory=list)

    def next(self) -> str:
        return self.free.pop() if self.free else self.new("t")

    def new(self, prefix: str) -> str:
        name = next(name for i in count(1) if (name := f"{prefix}{i}") not in self.taken)
        self.taken.add(name)
        return name


class Spelling:
    """Writes one graph. `given` has the text of what the graph is given: arguments, parameters, buffers. `settings` are
    numbers that are attributes of the model, with their text."""

    def __init__(
        self, graph: Graph, given: Mapping[str, str], arguments: Sequence[str], settings: Mapping[float, str]
    ) -> None:
        self._graph, self._settings = graph, settings
        self._texts = dict(given)
        self._names = _Names({*arguments, "self", _DEVICE})
        self._owned = {node: text for node, text in given.items() if text in arguments}
        self._lines: list[str] = []
        self._products: list[ProductSpec] = []
        self._parts: set[str] = set()
        self._left: Counter[str] = Counter()
        self._needs_device = False

    def lines(self, out_spec: pytree.TreeSpec) -> Lines:
        """The whole graph."""
        nodes = [node for node in self._graph.nodes if node.op != "placeholder"]
        fused = dict(self._fused(nodes))
        done = set(fused.values())
        for node in nodes:
            if node.op == "output":
                self._return(node, out_spec)
            elif node.op == "get_attr":
                raise RefusalError(
                    "a switch of gradients or types inside of forward, such as torch.no_grad or autocast,"
                )
            elif node.op != "call_function":
                raise RefusalError(_described(node))
            elif node.target not in _SAYINGS and node not in done:
                self._compute(node, fused.get(node))
        lines = [f"{_DEVICE} = {self._first_tensor()}.device"] if self._needs_device else []
        return Lines(
            text=(*lines, *self._lines),
            products=tuple(dict.fromkeys(self._products)),
            parts=frozenset(self._parts),
            left=dict(self._left),
        )

    def _first_tensor(self) -> str:
        """What is where the model is."""
        given = (node for node in self._graph.nodes if node.op == "placeholder")
        return next(self._texts[node.name] for node in given if isinstance(node.meta.get("val"), torch.Tensor))

    def _fused(self, nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
        """Products of which an activation is all that is used, with that."""
        for node in nodes:
            if node.target is _aten.linear.default and len(node.users) == 1:
                user = next(iter(node.users))
                if user.args == (node,) and _activation(user) is not None:
                    yield node, user

    def _compute(self, node: Node, activation: Node | None) -> None:
        text = self._expression(node, None if activation is None else _activation(activation))
        result = node if activation is None else activation
        if activation is None and _is_statement(node):
            changed = node.args[0]
            assert isinstance(changed, Node)
            self._lines.append(text)
            self._texts[node.name] = self._texts[changed.name]
            if changed.name in self._owned:
                self._owned[node.name] = self._owned[changed.name]
            self._forget_inputs_of(node)
            return
        self._forget_inputs_of(node)
        is_number = isinstance(result.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
        name = self._names.new("n") if is_number else self._names.next()
        self._lines.append(f"{name} = {text}")
        self._texts[result.name] = name
        if not is_number:
            self._owned[result.name] = name
        if not result.users:
            self._release(result)

    def _forget_inputs_of(self, node: Node) -> None:
        """Frees the names of values that nobody uses after this one."""
        for x in reversed(list(dict.fromkeys(node.all_input_nodes))):  # the first one's name is taken next
            if all(user is node or user.name in self._texts for user in x.users if user.target not in _SAYINGS):
                self._release(x)

    def _release(self, node: Node) -> None:
        name = self._owned.pop(node.name, None)
        # What an operation in place has changed is the same value under two nodes.
        if name is not None and name not in self._owned.values():
            self._names.free.append(name)

    def _return(self, node: Node, out_spec: pytree.TreeSpec) -> None:
        results = [self._value(x) for x in node.args[0]]  # type: ignore[union-attr]
        self._lines.append(f"return {_structure(pytree.tree_unflatten(results, out_spec))}")

    # Expressions.

    def _expression(self, node: Node, activation: str | None) -> str:
        target = node.target
        if target is operator.getitem:
            return f"{self._value(node.args[0])}[{self._value(node.args[1])}]"
        if target is _aten.sym_size.int:
            return f"{self._value(node.args[0])}.size({node.args[1]})"
        if target is operator.neg:
            return f"-{self._value(node.args[0])}"
        if (infix := _INFIX.get(target)) and not node.kwargs and _is_tensor_first(node):
            self._note(node)
            return f"{self._value(node.args[0])} {infix} {self._value(node.args[1])}"
        if name := _FUNCTIONS.get(target):
            return f"{name}({', '.join(map(self._value, node.args))})"
        if isinstance(target, torch._ops.OpOverload):
            return self._product(node, activation) or self._operation(node)
        raise RefusalError(_described(node))

    def _product(self, node: Node, activation: str | None) -> str | None:
        """The call of one of our products; None if it is none."""
        target = node.target
        if target is _aten.einsum.default:
            return self._einsum(node)
        tensors = [x for x in map(_made, node.args) if isinstance(x, torch.Tensor)]
        if not tensors or tensors[0].dtype not in _FLOATS:
            return None
        texts = [self._value(x) for x in node.args]
        if target is _aten.linear.default:
            self._parts.add("linear")
            self._plan(ProductSpec.linear(*tensors[:2], has_bias=len(tensors) > 2, activation=activation), tensors)
            texts += [f'activation="{activation}"'] if activation else []
            return f"_linear({', '.join(texts)})"
        if target in _PRODUCTS:
            self._plan(ProductSpec.of(*tensors), tensors)
            return f"_matmul({', '.join(texts)})"
        if target in _ADDED_PRODUCTS:
            self._parts.add("added")
            self._plan(ProductSpec.of(*tensors[1:]), tensors)
            factors = [self._value(node.kwargs.get(name, 1)) for name in ("beta", "alpha")]
            return f"_added({', '.join([*texts, *factors])})"
        return None

    def _einsum(self, node: Node) -> str | None:
        equation, operands = node.args[:2]
        assert isinstance(equation, str) and isinstance(operands, list | tuple)
        tensors = [_made(x) for x in operands]
        if len(tensors) != 2 or tensors[0].dtype not in _FLOATS or "." in equation:
            return None
        self._parts.add("einsum")
        spec = ProductSpec.einsum(equation, *tensors)
        if spec is not None:
            self._plan(spec, tensors)
        return f'_einsum("{equation}", {", ".join(map(self._value, operands))})'

    def _plan(self, spec: ProductSpec, tensors: Sequence[torch.Tensor]) -> None:
        if all(x.dtype == torch.float32 and x.numel() for x in tensors):
            self._products.append(spec)

    def _operation(self, node: Node) -> str:
        """A call of torch's own operation."""
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        own = torchs_own(target)
        if target.namespace != "aten" and own is None:
            raise RefusalError(_described(node))
        called = own or f"{target._schema.name.removeprefix('aten::')}.{target._overloadname}"
        self._note(node)
        arguments = []
        schema = target._schema.arguments
        for parameter, x in zip(schema, node.args, strict=False):
            arguments.append(self._argument(parameter.name, x))
        for name, x in node.kwargs.items():
            if not (name == "layout" and x is torch.strided) and not (name in ("pin_memory", "device") and not x):
                arguments.append(f"{name}={self._argument(name, x)}")
        return f"_aten.{called}({', '.join(arguments)})"

    def _note(self, node: Node) -> None:
        self._parts.add("aten")
        name = getattr(getattr(node.target, "_schema", None), "name", "aten::getitem").partition("::")[2]
        if name not in _VIEWS and isinstance(node.meta.get("val"), torch.Tensor | list | tuple):
            self._left[name.rstrip("_")] += 1

    def _argument(self, name: str, x: Any) -> str:
        return "_torch.backends.cudnn.enabled" if name in _CUDNN else self._value(x)

    def _value(self, x: Any) -> str:
        """An argument as Python."""
        match x:
            case Node():
                return self._texts[x.name]
            case list() | tuple():
                inner = ", ".join(map(self._value, x))
                return f"[{inner}]"
            case bool() | None | str():
                return repr(x)
            case float():
                return self._settings.get(x) or (repr(x) if math.isfinite(x) else f'float("{x}")')
            case int():
                return repr(x)
            case torch.dtype() | torch.memory_format() | torch.layout():
                return f"_{x}"
            case torch.device():  # there is one for all
                self._needs_device = True
                return _DEVICE
        raise RefusalError(f"an argument of type {type(x).__name__}")


def _activation(node: Node) -> str | None:
    arguments = tuple(node.kwargs.items()) if isinstance(node.target, torch._ops.OpOverload) else None
    return None if arguments is None else _ACTIVATIONS.get((node.target, arguments))


def _is_statement(node: Node) -> bool:
    """Whether an operation changes its first argument in place, and gives that back."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    first = target._schema.arguments[0]
    return bool(first.alias_info and first.alias_info.is_write)


def _is_tensor_first(node: Node) -> bool:
    """Whether Python's operator is the one of tensors, or all are numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return len(node.args) == 2 and isinstance(node.args[0], Node)


def _made(x: Any) -> Any:
    """A tensor without memory, of the sizes that were traced, in the place of a node."""
    value = x.meta.get("val") if isinstance(x, Node) else x
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = (tuple(_hint(n) for n in sizes) for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def _hint(n: int | torch.SymInt) -> int:
    return n.node.hint if isinstance(n, torch.SymInt) else n


def _structure(x: Any) -> str:
    """What a forward returns, around the texts of its tensors."""
    match x:
        case str():
            return x
        case tuple():
            return f"({', '.join(map(_structure, x))}{',' if len(x) == 1 else ''})"
        case list():
            return f"[{', '.join(map(_structure, x))}]"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_structure(value)}' for key, value in x.items())}}}"
    raise RefusalError(f"a result that is a {type(x).__name__}")


def _described(node: Node) -> str:
    """An operation that has no text."""
    return f"{node.op} of {node.target}"
