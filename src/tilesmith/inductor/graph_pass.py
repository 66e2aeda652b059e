"""The pass over Inductor's graphs: products that are ours, with what follows them, become `tilesmith::product`.

What stays with torch stays aten, so that Inductor pads and fuses it as ever. When it runs, an override decides it the
same way: by the same settings and the same cost model.
"""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources.abc import Traversable
from typing import Any, Final

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node

from tilesmith.core.accuracy import DEFAULT, Numerics, numerics
from tilesmith.core.checks import SIXTEEN_BITS, can_be_broadcast
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.package import NAMESPACE, files
from tilesmith.core.problem import Problem
from tilesmith.inductor import lowering
from tilesmith.inductor.chain import Chain, start, value_of, with_what_follows
from tilesmith.inductor.padding import Padded, erase_unused, padded
from tilesmith.inductor.sizes import hinted
from tilesmith.override.cutover import torch_is_faster
from tilesmith.override.registration import settings_in_force
from tilesmith.override.settings import Predicate, Settings
from tilesmith.planner import choose
from tilesmith.runtime.registry import executor_on
from tilesmith.torch_ops.product import product

_TAKEN: Final = frozenset({torch.float32, *SIXTEEN_BITS})

_asked: ContextVar[Settings | None] = ContextVar(f"{NAMESPACE}_compiled_by", default=None)


@contextmanager
def compiling_by(settings: Settings) -> Iterator[None]:
    """Inside of it, what this thread compiles is compiled by these settings, where no override is in force."""
    token = _asked.set(settings)
    try:
        yield
    finally:
        _asked.reset(token)


class ProductPass(CustomGraphModulePass):
    """The pass for tensors on one type of device, after the one that was registered for it before. It does nothing
    while no override is in force there."""

    def __init__(self, device_type: str, before: CustomGraphModulePass | None) -> None:
        self._device_type, self._before = device_type, before

    def __call__(self, gm: GraphModule) -> None:
        if self._before is not None:
            self._before(gm)
        settings = self._settings()
        if settings is None or config.cpp_wrapper or getattr(config, "fx_wrapper", False):
            return  # there, what launches our kernels cannot be called
        lowering.register()
        replace_products(gm.graph, self._device_type, settings)

    def uuid(self) -> Any:
        """What the caches of compiled programs know of the pass: its sources, and what it would take."""
        before = None if self._before is None else self._before.uuid()
        settings = self._settings()
        if settings is None:
            return before
        lowering.register()
        executor = executor_on("cpu") if self._device_type == "cpu" else None
        return NAMESPACE, _sources(), _identity(settings), repr(executor), before

    def _settings(self) -> Settings | None:
        if executor_on(self._device_type) is None:
            return None
        return settings_in_force(self._device_type) or _asked.get()


@cache
def _sources() -> str:
    """A hash of the package's Python files and rates: all that a choice depends on."""
    found = hashlib.sha256()
    for name, path in sorted(_files(files(), "")):
        found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif each.name.endswith((".py", ".toml")):
            yield prefix + each.name, each


def _identity(settings: Settings) -> tuple[object, ...]:
    def of(choice: frozenset[str] | Predicate | None) -> object:
        return _of_function(choice) if callable(choice) else choice and sorted(choice)

    accuracy = None if settings.numerics is None else settings.numerics.accuracy
    return accuracy, of(settings.include), of(settings.exclude), settings.min_flops


@cache
def _of_function(_: Predicate) -> str:
    """What a function of a user does, no other process can know: what was compiled by it is kept for this one."""
    return uuid.uuid4().hex


def replace_products(graph: Graph, device_type: str, settings: Settings) -> None:
    """Has our operator compute each product of the graph that is ours, with what follows it."""
    with unset_fake_temporarily(), torch.no_grad():  # activations are compared by their values
        for node in list(graph.nodes):
            chain = None if node._erased or not node.users else start(node)
            if chain is None or value_of(node).device.type != device_type:
                continue
            before = padded(node)
            if before is None or not _replace_padded(graph, chain, before, settings):
                _replace_product(graph, chain, settings)


def _replace_padded(graph: Graph, chain: Chain, before: Padded, settings: Settings) -> bool:
    """Replaces a product by what it was before it was padded, if it is ours both ways."""
    if not _is_ours(chain, settings):
        return False
    new = before.insert(graph)
    unpadded = start(new)
    if unpadded is None or not _replace_product(graph, unpadded, settings):
        before.undo(graph, new)
        return False
    erase_unused(graph, before.part)
    return True


def _replace_product(graph: Graph, chain: Chain, settings: Settings) -> bool:
    for candidate in with_what_follows(chain):
        if _is_ours(candidate, settings):
            _replace(graph, candidate, _numerics_of(candidate, settings))
            return True
    return False


def _numerics_of(chain: Chain, settings: Settings) -> Numerics:
    return settings.numerics or (numerics(None) if value_of(chain.a).dtype == torch.float32 else DEFAULT)


def _is_ours(chain: Chain, settings: Settings) -> bool:
    a, b = value_of(chain.a), value_of(chain.b)
    sixteen = a.dtype in SIXTEEN_BITS and chain.out_dtype == torch.float32
    if (
        a.dtype not in _TAKEN
        or a.dtype != b.dtype
        or a.device != b.device
        or not (sixteen or chain.out_dtype == a.dtype)
    ):
        return False
    if any(each.layout != torch.strided for each in (a, b)) or settings.leaves(chain.operator) is not None:
        return False
    meta_a, meta_b, meta_sums = hinted(a), hinted(b), hinted(value_of(chain.product))
    end = hinted(value_of(chain.end))
    if meta_a is None or meta_b is None or meta_sums is None or end is None:
        return False
    if meta_a.numel() == 0 or meta_b.numel() == 0 or not (end.mT if chain.is_transposed else end).is_contiguous():
        return False
    epilogue = _epilogue_of(chain, meta_sums)
    if epilogue is None:
        return False
    accuracy = _numerics_of(chain, settings).accuracy
    problem = Problem.of(*(meta_a, meta_b), accuracy=accuracy, out_dtype=chain.out_dtype, epilogue=epilogue)
    if settings.leaves_problem(problem) is not None:
        return False
    executor = executor_on(a.device.type)
    assert executor is not None
    return torch_is_faster(choose(problem, executor.gpu_of(a))) is None


def _epilogue_of(chain: Chain, sums: torch.Tensor) -> Epilogue | None:
    """The epilogue on the meta device; None if it is none of ours."""
    bias = residual = None
    if chain.bias is not None:
        found = hinted(value_of(chain.bias))
        if found is None:
            return None
        bias = found.reshape(-1)
    if chain.residual is not None:
        found = hinted(value_of(chain.residual))
        if found is None or found.dtype not in (value_of(chain.a).dtype, chain.out_dtype):
            return None
        if chain.view is not None:
            symbols = sum(isinstance(size, torch.SymInt) for size in value_of(chain.product).shape)
            if not found.is_contiguous() or found.numel() != sums.numel() or symbols > 1:
                return None  # rows of the product would not be rows of it, or are not known to be
            found = found.reshape(sums.shape)
        if not can_be_broadcast(found.shape, sums.shape):
            return None
        residual = found
    if bias is not None and bias.dtype not in (value_of(chain.a).dtype, chain.out_dtype):
        return None
    return Epilogue(bias, chain.activation, residual, chain.scale, chain.residual_scale)


def _replace(graph: Graph, chain: Chain, resolved: Numerics) -> None:
    sums = value_of(chain.product)
    fake_mode = sums.fake_mode  # type: ignore[attr-defined]

    def call(target: Any, arguments: tuple[Any, ...], value: torch.Tensor, **options: Any) -> Node:
        node = graph.call_function(target, arguments, options)
        node.meta |= {name: each for name, each in chain.end.meta.items() if name in ("stack_trace", "original_aten")}
        node.meta["val"] = value
        return node

    with graph.inserting_before(chain.end), fake_mode:
        bias, residual = chain.bias, chain.residual
        if bias is not None and value_of(bias).dim() > 1:
            bias = call(torch.ops.aten.reshape.default, (bias, [-1]), value_of(bias).reshape(-1))
        if residual is not None and chain.view is not None:
            value = value_of(residual).new_empty(sums.shape)
            residual = call(torch.ops.aten.reshape.default, (residual, _shape_of(chain.product)), value)
        options: dict[str, Any] = {"accuracy": resolved.accuracy}
        if chain.out_dtype != value_of(chain.a).dtype:
            options["out_dtype"] = chain.out_dtype
        if chain.activation is not None:
            options["activation"] = chain.activation
        if chain.scale != 1:
            options["scale"] = chain.scale
        if chain.residual_scale != 1:
            options["residual_scale"] = chain.residual_scale
        value = sums.new_empty(sums.shape, dtype=chain.out_dtype)
        new = call(product, (chain.a, chain.b, bias, residual), value, **options)
        if chain.view is not None:
            value = value_of(chain.end).new_empty(value_of(chain.end).shape)
            new = call(torch.ops.aten.reshape.default, (new, chain.view.args[1]), value)
        if chain.is_transposed:
            new = call(torch.ops.aten.permute.default, (new, [1, 0]), value.mT)
    chain.end.replace_all_uses_with(new)
    erase_unused(graph, chain.end)


def _shape_of(node: Node) -> list[Any]:
    """The sizes of a product as arguments: one may be a symbol, and is what is left."""
    return [-1 if isinstance(size, torch.SymInt) else size for size in value_of(node).shape]
