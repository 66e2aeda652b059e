"""torch's operations as a chain has them: what each computes of an element or of a segment."""

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.fx import Node

from tilesmith.kernelbench.chain_text import Reduction

_aten: Final = torch.ops.aten


class UnfitError(Exception):
    """An operation has no place in a chain."""


# Of one value, which is {0}, and of the numbers that torch is given after it.
UNARY: Final[dict[Any, str]] = {
    _aten.neg.default: "-{0}",
    _aten.abs.default: "fabsf({0})",
    _aten.exp.default: "expf({0})",
    _aten.log.default: "logf({0})",
    _aten.sqrt.default: "sqrtf({0})",
    _aten.rsqrt.default: "rsqrtf({0})",
    _aten.reciprocal.default: "1.0f / {0}",
    _aten.sin.default: "sinf({0})",
    _aten.cos.default: "cosf({0})",
    _aten.square.default: "{0} * {0}",
    _aten.tanh.default: "tanhf({0})",
    _aten.tanh_.default: "tanhf({0})",
    _aten.sigmoid.default: "sigmoid({0})",
    _aten.sigmoid_.default: "sigmoid({0})",
    _aten.relu.default: "at_least({0}, 0.0f)",
    _aten.relu_.default: "at_least({0}, 0.0f)",
    _aten.relu6.default: "at_most(at_least({0}, 0.0f), 6.0f)",
    _aten.relu6_.default: "at_most(at_least({0}, 0.0f), 6.0f)",
    _aten.silu.default: "{0} / (1.0f + expf(-{0}))",
    _aten.silu_.default: "{0} / (1.0f + expf(-{0}))",
    _aten.mish.default: "{0} * tanhf(log1pf(expf({0})))",
    _aten.mish_.default: "{0} * tanhf(log1pf(expf({0})))",
    _aten.hardsigmoid.default: "at_most(at_least({0} + 3.0f, 0.0f), 6.0f) / 6.0f",
    _aten.hardswish.default: "{0} * at_most(at_least({0} + 3.0f, 0.0f), 6.0f) / 6.0f",
    _aten.hardswish_.default: "{0} * at_most(at_least({0} + 3.0f, 0.0f), 6.0f) / 6.0f",
}
# The same with numbers: their names and what they are if they are not given.
NUMBERED: Final[dict[Any, tuple[str, dict[str, float]]]] = {
    _aten.leaky_relu.default: ("{0} > 0.0f ? {0} : {0} * {1}", {"negative_slope": 0.01}),
    _aten.leaky_relu_.default: ("{0} > 0.0f ? {0} : {0} * {1}", {"negative_slope": 0.01}),
    _aten.hardtanh.default: ("at_most(at_least({0}, {1}), {2})", {"min_val": -1.0, "max_val": 1.0}),
    _aten.hardtanh_.default: ("at_most(at_least({0}, {1}), {2})", {"min_val": -1.0, "max_val": 1.0}),
    _aten.softplus.default: ("softplus({0}, {1}, {2})", {"beta": 1.0, "threshold": 20.0}),
    _aten.elu.default: (
        "{0} > 0.0f ? {0} * {2} : {1} * {2} * expm1f({0} * {3})",
        {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
    ),
}
# Of two values, or of a value and a number.
BINARY: Final[dict[Any, str]] = {
    _aten.add.Tensor: "{0} + {1}",
    _aten.add.Scalar: "{0} + {1}",
    _aten.sub.Tensor: "{0} - {1}",
    _aten.sub.Scalar: "{0} - {1}",
    _aten.rsub.Scalar: "{1} - {0}",
    _aten.mul.Tensor: "{0} * {1}",
    _aten.mul.Scalar: "{0} * {1}",
    _aten.div.Tensor: "{0} / {1}",
    _aten.div.Scalar: "{0} / {1}",
    _aten.minimum.default: "smaller({0}, {1})",
    _aten.min.other: "smaller({0}, {1})",
    _aten.maximum.default: "larger({0}, {1})",
    _aten.max.other: "larger({0}, {1})",
    _aten.clamp_min.default: "at_least({0}, {1})",
    _aten.clamp_max.default: "at_most({0}, {1})",
}
# The second of which may have a factor.
ALPHA: Final = (_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar)
# What leaves values as they are, so that the result may be the same memory.
SAME: Final = frozenset({_aten.detach.default, _aten.alias.default, _aten.clone.default, _aten.contiguous.default})
_DROPOUT: Final = (_aten.dropout.default, _aten.feature_dropout.default, _aten.alpha_dropout.default)
# Of a segment: the reduction, and whether it is divided by the length.
REDUCTIONS: Final[dict[Any, tuple[Reduction, bool]]] = {
    _aten.sum.dim_IntList: ("sum", False),
    _aten.mean.dim: ("sum", True),
    _aten.amax.default: ("max", False),
    _aten.amin.default: ("min", False),
    _aten.max.dim: ("max", False),
    _aten.min.dim: ("min", False),
}
SOFTMAX: Final = (_aten.softmax.int, _aten.log_softmax.int)


# What takes torch several launches.
_LAUNCHES: Final[dict[Any, int]] = {
    _aten.group_norm.default: 2,
    _aten.instance_norm.default: 2,
    _aten.logsumexp.default: 6,
}


def launches_of(node: Node) -> int:
    """How many kernels torch launches for it, about."""
    return 0 if is_same(node) or is_first_of_pair(node) else _LAUNCHES.get(node.target, 1)


def is_dropout(node: Node) -> bool:
    """Whether a node may leave elements out."""
    return node.target in _DROPOUT


def is_same(node: Node) -> bool:
    """Whether a node gives its argument."""
    if is_dropout(node):
        return node.args[2] is False or node.args[1] in (0, 0.0)
    return node.target in SAME and len(node.args) == 1 and not node.kwargs


def is_pair(node: Node) -> bool:
    """Whether it gives an extreme and its index, of which a chain has the extreme alone."""
    return node.target in (_aten.max.dim, _aten.min.dim)


def is_first_of_pair(node: Node) -> bool:
    """Whether it is that extreme."""
    return node.target is operator.getitem and node.args[1:] == (0,) and is_pair(argument(node, 0, "", None))


def argument(node: Node, position: int, name: str, otherwise: Any) -> Any:
    """What an operation is given, by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, otherwise)


def shape_of(node: Node) -> tuple[int, ...]:
    """The sizes of a float32 tensor as they were when it was traced."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.layout != torch.strided:
        raise UnfitError
    return tuple(n.node.hint if isinstance(n, torch.SymInt) else n for n in value.shape)


def trailing(dims: Sequence[int] | int | None, dim_count: int) -> int:
    """How many dimensions are reduced, if these are the last ones."""
    if dims is None or dims == [] or dim_count == 0:
        raise UnfitError
    given = sorted({d % dim_count for d in ([dims] if isinstance(dims, int) else dims)})
    if given != list(range(dim_count - len(given), dim_count)):
        raise UnfitError
    return len(given)


def literal(x: float) -> str:
    """A number as C++ has it in float32.

    >>> literal(2), literal(0.1), literal(-1.5)
    ('2.0f', '0.10000000149011612f', '-1.5f')
    """
    rounded = torch.tensor(float(x), dtype=torch.float32).item()
    if not math.isfinite(rounded):
        raise UnfitError
    return f"{rounded!r}f"
