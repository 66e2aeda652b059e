"""What the nodes of a graph are: their names in torch and in Python, and their values without memory."""

import operator
from typing import Any, Final

import torch
from torch.fx import Node

from tilesmith.kernelbench.rules import RefusalError

_aten: Final = torch.ops.aten

# What says how a value is, and computes nothing.
SAYINGS: Final = frozenset(
    {_aten._assert_tensor_metadata.default, _aten._assert_scalar.default, _aten.sym_constrain_range_for_size.default}
)
INFIX: Final[dict[Any, str]] = {
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
FUNCTIONS: Final[dict[Any, str]] = {
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
PRODUCTS: Final = (_aten.matmul.default, _aten.mm.default, _aten.bmm.default, _aten.mv.default, _aten.dot.default)
ADDED_PRODUCTS: Final = (_aten.addmm.default, _aten.baddbmm.default, _aten.addmv.default)
# Of the arguments of torch's operations, those that a machine decides.
CUDNN: Final = ("cudnn_enabled", "cudnn_enable")
# What is not worth a word in a list of what is left to torch.
VIEWS: Final = (
    *("view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "t", "expand", "slice", "select", "flatten"),
    *("unflatten", "detach", "alias", "chunk", "split", "split_with_sizes", "unbind", "narrow", "contiguous", "clone"),
    *("numpy_T", "getitem", "expand_as", "view_as", "_unsafe_view", "movedim", "add_", "detach_", "to"),
)


def torchs_name(node: Node) -> str:
    """What torch calls an operation."""
    return str(getattr(getattr(node.target, "_schema", None), "name", "aten::getitem")).partition("::")[2]


def activation_of(node: Node) -> str | None:
    arguments = tuple(node.kwargs.items()) if isinstance(node.target, torch._ops.OpOverload) else None
    return None if arguments is None else _ACTIVATIONS.get((node.target, arguments))


def is_statement(node: Node) -> bool:
    """Whether an operation changes its first argument in place, and gives that back."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    first = target._schema.arguments[0]
    return bool(first.alias_info and first.alias_info.is_write)


def is_tensor_first(node: Node) -> bool:
    """Whether Python's operator is the one of tensors, or all are numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return len(node.args) == 2 and isinstance(node.args[0], Node)


def without_memory(x: Any) -> Any:
    """A tensor without memory, of the sizes that were traced, in the place of a node."""
    value = x.meta.get("val") if isinstance(x, Node) else x
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = (tuple(_hint(n) for n in sizes) for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def _hint(n: int | torch.SymInt) -> int:
    return n.node.hint if isinstance(n, torch.SymInt) else n


def structured(x: Any) -> str:
    """What a forward returns, around the texts of its tensors."""
    match x:
        case str():
            return x
        case tuple():
            return f"({', '.join(map(structured, x))}{',' if len(x) == 1 else ''})"
        case list():
            return f"[{', '.join(map(structured, x))}]"
        case dict():
            return f"{{{', '.join(f'{key!r}: {structured(value)}' for key, value in x.items())}}}"
    raise RefusalError(f"a result that is a {type(x).__name__}")


def described(node: Node) -> str:
    """An operation that has no text."""
    return f"{node.op} of {node.target}"
