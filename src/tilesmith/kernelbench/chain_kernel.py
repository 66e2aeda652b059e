"""The kernel of a chain: from nodes of a graph to what each element and each segment is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch.fx import Node

from tilesmith.kernelbench.chain_rules import (
    ALPHA,
    BINARY,
    NUMBERED,
    REDUCTIONS,
    SOFTMAX,
    UNARY,
    UnfitError,
    argument,
    is_first_of_pair,
    is_same,
    literal,
    shape_of,
    trailing,
)
from tilesmith.kernelbench.chain_spec import MAX_NUMBERS, MAX_OPERANDS, ChainSpec, Form
from tilesmith.kernelbench.chain_text import ChainText, Value
from tilesmith.kernelbench.stand_ins import torchs_own

_aten: Final = torch.ops.aten
_LENGTH: Final = "static_cast<float>(g.length)"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes of a graph that a kernel does, in their order; the last one is the result."""

    nodes: tuple[Node, ...]
    tensors: tuple[Node, ...]  # what it is given
    numbers: tuple[float, ...]  # settings, which are given too
    spec: ChainSpec


def chain_of(nodes: Sequence[Node], settings: Mapping[float, str]) -> Chain:
    """The chain of these nodes; UnfitError if they are none."""
    return _Building(nodes, settings).chain()


@dataclass(frozen=True, slots=True)
class _Held:
    """What a kernel knows of a node."""

    value: Value
    shape: Shape
    form: Form


class _Building:
    """Makes the kernel of a chain, or raises UnfitError."""

    def __init__(self, nodes: Sequence[Node], settings: Mapping[float, str]) -> None:
        self._nodes, self._settings = nodes, settings
        self._text = ChainText()
        self._held: dict[Node, _Held] = {}
        self._given: dict[tuple[Node, str], Value] = {}  # by how they lie
        self._numbers: dict[float, str] = {}
        self._reduced_dims = self._groups = 0
        self._whole = self._find_whole()
        first = next((x for node in nodes for x in node.all_input_nodes if self._is_whole(x)), None)
        if first is None or 0 in self._whole:
            raise UnfitError
        self._operand(first, "n" * len(self._whole))

    def chain(self) -> Chain:
        for node in self._nodes:
            self._held[node] = self._computed(node)
        last = self._held[self._nodes[-1]]
        tensors = {node for node, _ in self._given}
        if any(x not in self._held and x not in tensors for node in self._nodes for x in node.all_input_nodes):
            raise UnfitError  # of sizes, which are no constants
        if len(self._given) > MAX_OPERANDS or len(self._numbers) > MAX_NUMBERS:
            raise UnfitError
        spec = ChainSpec(
            text=self._text.text("Chain", last.value),
            operands=tuple(lies for _, lies in self._given),
            reduced_dims=self._reduced_dims,
            groups=self._groups,
            result=last.form,
        )
        return Chain(tuple(self._nodes), tuple(node for node, _ in self._given), tuple(self._numbers), spec)

    def _find_whole(self) -> Shape:
        """The shape of what is reduced, or of the result."""
        for node in self._nodes:
            if node.target in REDUCTIONS or node.target in (*SOFTMAX, _aten.logsumexp.default):
                return shape_of(argument(node, 0, "self", None))
        return shape_of(self._nodes[-1])

    def _is_whole(self, node: Node) -> bool:
        value = node.meta.get("val")
        is_own = node in self._nodes or not isinstance(value, torch.Tensor) or value.dtype != torch.float32
        return not is_own and shape_of(node) == self._whole

    # What is given.

    def _operand(self, node: Node, lies: str) -> Value:
        """A tensor that lies so."""
        if (node, lies) not in self._given:
            whole = lies == "n" * len(self._whole)
            self._given[node, lies] = self._text.operand(is_whole=whole, is_of_segments=lies.startswith("/"))
        return self._given[node, lies]

    def _number(self, x: Any) -> str:
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise UnfitError
        if isinstance(x, float) and x in self._settings:
            if x not in self._numbers:
                self._numbers[x] = self._text.number()
            return self._numbers[x]
        return literal(x)

    def _lying(self, node: Node, basis: Shape, prefix: str) -> Value:
        """A tensor that is broadcast over one of this shape."""
        shape = shape_of(node)
        own = basis[len(basis) - len(shape) :]
        if len(shape) > len(basis) or any(n not in (1, size) for n, size in zip(shape, own, strict=True)):
            raise UnfitError
        lies = "".join("1" if n == 1 and size != 1 else "n" for n, size in zip(shape, own, strict=True))
        if "1" in lies.strip("1"):  # values that come again after others have come
            raise UnfitError
        return self._operand(node, prefix + lies)

    # What is computed.

    def _computed(self, node: Node) -> _Held:
        target: Any = node.target
        if is_same(node) or is_first_of_pair(node):
            x = node.args[0]
            assert isinstance(x, Node)
            return self._held[x] if x in self._held else self._pointwise(node, "{0}", [x])
        if code := UNARY.get(target):
            self._only(node, 1)
            return self._pointwise(node, code, [node.args[0]])
        if numbered := NUMBERED.get(target):
            code, defaults = numbered
            self._only(node, 1 + len(defaults), *defaults)
            numbers = [argument(node, i, name, value) for i, (name, value) in enumerate(defaults.items(), 1)]
            return self._pointwise(node, code, [node.args[0], *numbers])
        if code := BINARY.get(target):
            self._only(node, 2, *(["alpha"] if target in ALPHA else []))
            if (alpha := node.kwargs.get("alpha", 1)) != 1:
                code = code.replace("{1}", f"{self._number(alpha)} * {{1}}")
            return self._pointwise(node, code, list(node.args[:2]))
        if target in REDUCTIONS:
            return self._reduction(node)
        own = {
            _aten.gelu.default: self._gelu,
            _aten.clamp.default: self._clamp,
            _aten.pow.Tensor_Scalar: self._power,
            _aten.layer_norm.default: self._layer_norm,
            _aten.group_norm.default: self._group_norm,
            _aten.instance_norm.default: self._instance_norm,
            _aten.softmax.int: self._softmax,
            _aten.log_softmax.int: self._softmax,
            _aten.logsumexp.default: self._logsumexp,
        }.get(target)
        if torchs_own(target) == "batch_norm.default":
            own = self._batch_norm
        if own is None:
            raise UnfitError
        return own(node)

    def _only(self, node: Node, count: int, *names: str) -> None:
        """Refuses what is given arguments that are not understood."""
        if len(node.args) > count or set(node.kwargs) - set(names):
            raise UnfitError

    def _pointwise(self, node: Node, code: str, given: Sequence[Any]) -> _Held:
        """An expression in which {0} is the first of the given nodes and numbers, {1} the second ..."""
        shape = shape_of(node)
        form: Form = "whole" if shape == self._whole else "kept" if len(shape) == len(self._whole) else "dropped"
        if form != "whole" and shape != self._left(form):
            raise UnfitError
        values: list[Value] = []
        texts = []
        for x in given:
            if not isinstance(x, Node):
                texts.append(self._number(x))
                continue
            if (held := self._held.get(x)) is None:
                value = self._lying(x, shape, "" if form == "whole" else "/")
            elif held.shape == shape or (form == "whole" and held.form == "kept"):
                value = held.value
            else:
                raise UnfitError
            texts.append("{}")
            values.append(value)
        order = [values[texts[: int(i)].count("{}")] for i in _places(code) if texts[int(i)] == "{}"]
        return _Held(self._text.computed(code.format(*texts), *order), shape, form)

    def _left(self, form: Form) -> Shape:
        """The shape of what reductions leave."""
        if self._reduced_dims == 0:
            raise UnfitError
        kept = self._whole[: len(self._whole) - self._reduced_dims]
        return kept if form == "dropped" else (*kept, *(1,) * self._reduced_dims)

    def _elements(self, x: Any) -> Value:
        """A value of each element of what is reduced."""
        if not isinstance(x, Node) or (x not in self._held and shape_of(x) != self._whole):
            raise UnfitError
        if x not in self._held:
            return self._operand(x, "n" * len(self._whole))
        if self._held[x].form != "whole":
            raise UnfitError
        return self._held[x].value

    def _segments(self, *, reduced_dims: int = 0, groups: int = 0) -> None:
        """What a segment is, which is the same for all reductions."""
        if self._text.has_segments and (reduced_dims, groups) != (self._reduced_dims, self._groups):
            raise UnfitError
        if reduced_dims and prod(self._whole[-reduced_dims:]) == 1:
            raise UnfitError
        self._reduced_dims, self._groups = reduced_dims, groups

    def _reduction(self, node: Node) -> _Held:
        self._only(node, 3, "dim", "keepdim")
        reduction, is_mean = REDUCTIONS[node.target]
        self._segments(reduced_dims=trailing(argument(node, 1, "dim", None), len(self._whole)))
        value = self._text.reduced(reduction, self._elements(node.args[0]))
        if is_mean:
            value = self._text.computed(f"{{}} / {_LENGTH}", value)
        return self._reduced_to(value, bool(argument(node, 2, "keepdim", False)))

    def _reduced_to(self, value: Value, keeps: bool) -> _Held:
        form: Form = "kept" if keeps else "dropped"
        return _Held(value, self._left(form), form)

    def _whole_result(self, value: Value) -> _Held:
        return _Held(value, self._whole, "whole")

    def _gelu(self, node: Node) -> _Held:
        self._only(node, 1, "approximate")
        name = {"none": "gelu", "tanh": "gelu_tanh"}[str(node.kwargs.get("approximate", "none"))]
        return self._pointwise(node, f"{name}({{0}})", [node.args[0]])

    def _clamp(self, node: Node) -> _Held:
        self._only(node, 3, "min", "max")
        code, given = "{0}", [node.args[0]]
        for function, x in (("at_least", argument(node, 1, "min", None)), ("at_most", argument(node, 2, "max", None))):
            if x is not None:
                code = f"{function}({code}, {{{len(given)}}})"
                given.append(x)
        return self._pointwise(node, code, given)

    def _power(self, node: Node) -> _Held:
        self._only(node, 2)
        exponent = node.args[1]
        code = {2: "{0} * {0}", 0.5: "sqrtf({0})", 3: "{0} * {0} * {0}"}.get(exponent)  # type: ignore[arg-type]
        return self._pointwise(node, code or "powf({0}, {1})", [node.args[0], *([] if code else [exponent])])

    def _softmax(self, node: Node) -> _Held:
        self._only(node, 2)
        self._segments(reduced_dims=trailing(node.args[1], len(self._whole)))  # type: ignore[arg-type]
        text, x = self._text, self._elements(node.args[0])
        below = text.computed("{} - {}", x, text.reduced("max", x))
        power = text.computed("expf({})", below)
        total = text.reduced("sum", power)
        if node.target is _aten.softmax.int:
            return self._whole_result(text.computed("{} / {}", power, total))
        return self._whole_result(text.computed("{} - logf({})", below, total))

    def _logsumexp(self, node: Node) -> _Held:
        self._only(node, 3, "keepdim")
        self._segments(reduced_dims=trailing(argument(node, 1, "dim", None), len(self._whole)))
        text, x = self._text, self._elements(node.args[0])
        largest = text.computed("finite_or_zero({})", text.reduced("max", x))
        total = text.reduced("sum", text.computed("expf({} - {})", x, largest))
        value = text.computed("{} + logf({})", largest, total)
        return self._reduced_to(value, bool(argument(node, 2, "keepdim", False)))

    def _batch_norm(self, node: Node) -> _Held:
        x, weight, bias, mean, variance, trains, _, eps = node.args[:8]
        if trains is not False or not isinstance(mean, Node) or not isinstance(variance, Node):
            raise UnfitError
        scale = self._text.computed(f"rsqrtf({{}} + {self._number(eps)})", self._operand(variance, "c"))
        centered = self._text.computed("{} - {}", self._elements(x), self._operand(mean, "c"))
        return self._affine(self._text.computed("{} * {}", centered, scale), weight, bias, "c")

    def _layer_norm(self, node: Node) -> _Held:
        dims = len(argument(node, 1, "normalized_shape", ()))
        self._segments(reduced_dims=dims)
        eps = argument(node, 4, "eps", 1e-5)
        return self._normalized(
            node, eps, argument(node, 2, "weight", None), argument(node, 3, "bias", None), "n" * dims
        )

    def _group_norm(self, node: Node) -> _Held:
        groups = argument(node, 1, "num_groups", 0)
        if len(self._whole) < 2 or not isinstance(groups, int):
            raise UnfitError
        self._segments(groups=groups)
        eps = argument(node, 4, "eps", 1e-5)
        return self._normalized(node, eps, argument(node, 2, "weight", None), argument(node, 3, "bias", None), "c")

    def _instance_norm(self, node: Node) -> _Held:
        _, weight, bias, mean, variance, of_inputs, _, eps = node.args[:8]
        if mean is not None or variance is not None or of_inputs is not True or len(self._whole) < 3:
            raise UnfitError
        self._segments(reduced_dims=len(self._whole) - 2)
        return self._normalized(node, eps, weight, bias, "c")

    def _normalized(self, node: Node, eps: Any, weight: Any, bias: Any, lies: str) -> _Held:
        text, x = self._text, self._elements(node.args[0])
        # A rounded mean is off by little, which counts where the values are all but the same: that is taken off, too.
        near = text.computed("{} - {}", x, text.computed(f"{{}} / {_LENGTH}", text.reduced("sum", x)))
        left = text.computed(f"{{}} / {_LENGTH}", text.reduced("sum", near))
        squares = text.reduced("sum", text.computed("{} * {}", near, near))
        variance = text.computed(f"at_least({{}} / {_LENGTH} - {{}} * {{}}, 0.0f)", squares, left, left)
        scale = text.computed(f"rsqrtf({{}} + {self._number(eps)})", variance)
        centered = text.computed("{} - {}", near, left)
        return self._affine(text.computed("{} * {}", centered, scale), weight, bias, lies)

    def _affine(self, value: Value, weight: Any, bias: Any, lies: str) -> _Held:
        for code, x in (("{} * {}", weight), ("{} + {}", bias)):
            if x is not None:
                shape_of(x)  # of float32
                value = self._text.computed(code, value, self._operand(x, lies))
        return self._whole_result(value)


def _places(code: str) -> list[str]:
    """The numbers in the braces of an expression, in order."""
    return [part.partition("}")[0] for part in code.split("{")[1:]]
