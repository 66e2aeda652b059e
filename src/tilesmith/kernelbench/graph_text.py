"""From a graph of torch's operations to the lines of a forward: products are ours, all else is torch's.

A value takes over the name of one that nobody needs any more, so that its memory is free when it is in plain torch.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from tilesmith.kernelbench.chain_kernel import Chain
from tilesmith.kernelbench.chain_rules import launches_of
from tilesmith.kernelbench.chain_spec import ChainSpec, name_of
from tilesmith.kernelbench.chains import chains_of
from tilesmith.kernelbench.graph_nodes import (
    ADDED_PRODUCTS,
    CUDNN,
    FUNCTIONS,
    INFIX,
    PRODUCTS,
    SAYINGS,
    VIEWS,
    activation_of,
    described,
    is_statement,
    is_tensor_first,
    structured,
    torchs_name,
    without_memory,
)
from tilesmith.kernelbench.products import ProductSpec
from tilesmith.kernelbench.rules import RefusalError
from tilesmith.kernelbench.stand_ins import torchs_own

_aten: Final = torch.ops.aten
_DEVICE: Final = "device"  # the variable of a forward that makes tensors
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Lines:
    """A forward as text."""

    text: tuple[str, ...]  # a statement each
    products: tuple[ProductSpec, ...]  # of the sizes that were traced
    chains: tuple[ChainSpec, ...]  # those that there were, and new ones
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
    numbers that are attributes of the model, with their text. `chains` are there already."""

    def __init__(
        self,
        graph: Graph,
        given: Mapping[str, str],
        arguments: Sequence[str],
        settings: Mapping[float, str],
        chains: Sequence[ChainSpec] = (),
    ) -> None:
        self._graph, self._settings = graph, settings
        self._chains = list(chains)
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
        chains = {chain.nodes[-1]: chain for chain in chains_of(nodes, self._settings)}
        in_chains = {node for chain in chains.values() for node in chain.nodes}
        fused = dict(self._fused([node for node in nodes if in_chains.isdisjoint(node.users)]))
        unused = {user for node in in_chains for user in node.users if not user.users and user.op != "output"}
        done = {*fused.values(), *in_chains, *unused}
        for node in nodes:
            if node.op == "output":
                self._return(node, out_spec)
            elif node in chains:
                self._chain(chains[node])
            elif node.op == "get_attr":
                raise RefusalError(
                    "a switch of gradients or types inside of forward, such as torch.no_grad or autocast,"
                )
            elif node.op != "call_function":
                raise RefusalError(described(node))
            elif node.target not in SAYINGS and node not in done:
                self._compute(node, fused.get(node))
        lines = [f"{_DEVICE} = {self._first_tensor()}.device"] if self._needs_device else []
        return Lines(
            text=(*lines, *self._lines),
            products=tuple(dict.fromkeys(self._products)),
            chains=tuple(self._chains),
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
                if user.args == (node,) and activation_of(user) is not None:
                    yield node, user

    def _chain(self, chain: Chain) -> None:
        """A call of the function that has a chain's steps."""
        spec = replace(
            chain.spec,
            arguments=tuple(names := [f"x{i}" for i in range(len(chain.tensors))])
            + tuple(numbers := [f"number{i}" for i in range(len(chain.numbers))]),
            steps=self._steps(chain, dict(zip(chain.tensors, names, strict=True)), numbers),
            does=tuple(torchs_name(node) for node in chain.nodes if launches_of(node)),
        )
        if spec not in self._chains:
            self._chains.append(spec)
        self._parts |= {"chain", "aten"}
        given = [*(self._texts[x.name] for x in chain.tensors), *(self._settings[x] for x in chain.numbers)]
        text = f"{name_of(self._chains.index(spec))}({', '.join(given)})"
        for node in chain.nodes[:-1]:
            self._texts[node.name] = ""
        last = chain.nodes[-1]
        self._bind(last, text, chain.tensors)

    def _steps(self, chain: Chain, names: Mapping[Node, str], numbers: Sequence[str]) -> tuple[str, ...]:
        """A chain's operations as a function of its tensors and numbers has them."""
        given = {node.name: name for node, name in names.items()}
        inner = Spelling(self._graph, given, list(names.values()), dict(zip(chain.numbers, numbers, strict=True)))
        for node in chain.nodes:
            inner._compute(node, None)
        return (*inner._lines, f"return {inner._texts[chain.nodes[-1].name]}")

    def _compute(self, node: Node, activation: Node | None) -> None:
        text = self._expression(node, None if activation is None else activation_of(activation))
        result = node if activation is None else activation
        if activation is None and is_statement(node):
            changed = node.args[0]
            assert isinstance(changed, Node)
            self._lines.append(text)
            self._texts[node.name] = self._texts[changed.name]
            if changed.name in self._owned:
                self._owned[node.name] = self._owned[changed.name]
            self._forget(node.all_input_nodes)
            return
        self._texts[node.name] = text
        self._bind(result, text, node.all_input_nodes)

    def _bind(self, result: Node, text: str, inputs: Sequence[Node]) -> None:
        """Gives a name to what a text computes from these, which others may have had."""
        self._texts[result.name] = text  # it is there, for those who ask which nodes are
        self._forget(inputs)
        is_number = isinstance(result.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
        name = self._names.new("n") if is_number else self._names.next()
        self._lines.append(f"{name} = {text}")
        self._texts[result.name] = name
        if not is_number:
            self._owned[result.name] = name
        if not result.users:
            self._release(result)

    def _forget(self, values: Sequence[Node]) -> None:
        """Frees the names of those that nobody uses any more."""
        for x in reversed(list(dict.fromkeys(values))):  # the first one's name is taken next
            if all(user.name in self._texts for user in x.users if user.target not in SAYINGS):
                self._release(x)

    def _release(self, node: Node) -> None:
        name = self._owned.pop(node.name, None)
        # What an operation in place has changed is the same value under two nodes.
        if name is not None and name not in self._owned.values():
            self._names.free.append(name)

    def _return(self, node: Node, out_spec: pytree.TreeSpec) -> None:
        results = [self._value(x) for x in node.args[0]]  # type: ignore[union-attr]
        self._lines.append(f"return {structured(pytree.tree_unflatten(results, out_spec))}")

    # Expressions.

    def _expression(self, node: Node, activation: str | None) -> str:
        target = node.target
        if target is operator.getitem:
            return f"{self._value(node.args[0])}[{self._value(node.args[1])}]"
        if target is _aten.sym_size.int:
            return f"{self._value(node.args[0])}.size({node.args[1]})"
        if target is operator.neg:
            return f"-{self._value(node.args[0])}"
        if (infix := INFIX.get(target)) and not node.kwargs and is_tensor_first(node):
            self._note(node)
            return f"{self._value(node.args[0])} {infix} {self._value(node.args[1])}"
        if name := FUNCTIONS.get(target):
            return f"{name}({', '.join(map(self._value, node.args))})"
        if isinstance(target, torch._ops.OpOverload):
            return self._product(node, activation) or self._operation(node)
        raise RefusalError(described(node))

    def _product(self, node: Node, activation: str | None) -> str | None:
        """The call of one of our products; None if it is none."""
        target = node.target
        if target is _aten.einsum.default:
            return self._einsum(node)
        tensors = [x for x in map(without_memory, node.args) if isinstance(x, torch.Tensor)]
        if not tensors or tensors[0].dtype not in _FLOATS:
            return None
        texts = [self._value(x) for x in node.args]
        if target is _aten.linear.default:
            self._parts.add("linear")
            self._plan(ProductSpec.linear(*tensors[:2], has_bias=len(tensors) > 2, activation=activation), tensors)
            texts += [f'activation="{activation}"'] if activation else []
            return f"_linear({', '.join(texts)})"
        if target in PRODUCTS:
            self._plan(ProductSpec.of(*tensors), tensors)
            return f"_matmul({', '.join(texts)})"
        if target in ADDED_PRODUCTS:
            self._parts.add("added")
            self._plan(ProductSpec.of(*tensors[1:]), tensors)
            factors = [self._value(node.kwargs.get(name, 1)) for name in ("beta", "alpha")]
            return f"_added({', '.join([*texts, *factors])})"
        return None

    def _einsum(self, node: Node) -> str | None:
        equation, operands = node.args[:2]
        assert isinstance(equation, str) and isinstance(operands, list | tuple)
        tensors = [without_memory(x) for x in operands]
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
            raise RefusalError(described(node))
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
        name = torchs_name(node)
        if name not in VIEWS and isinstance(node.meta.get("val"), torch.Tensor | list | tuple):
            self._left[name.rstrip("_")] += 1

    def _argument(self, name: str, x: Any) -> str:
        return "_torch.backends.cudnn.enabled" if name in CUDNN else self._value(x)

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
