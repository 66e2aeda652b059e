"""Samples of PyTorch's own test databases: calls of its operators and modules that its developers wrote down.

`op_db` and `module_db` belong to torch's tests. They are no promise of torch's to anybody, and differ between releases,
so everything that is taken from them is read here and nowhere else.
"""

import importlib.util
import sys
import unittest
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# Operators whose result is one product: it is held to the promise of a product.
PRODUCTS: Final = (
    *("mm", "addmm", "addmm.decomposed", "bmm", "baddbmm", "matmul", "__rmatmul__", "nn.functional.linear"),
    *("inner", "tensordot"),
)

# Those that are compared with torch's in all samples, whether there is a product or not, and in all types. What other
# operators reach a product is found when the lane runs: most of torch.linalg does in its gradients.
OPERATORS: Final = (
    *PRODUCTS,
    *("addbmm", "mv", "addmv", "dot", "vdot", "outer", "einsum", "cdist", "cov", "corrcoef", "matrix_exp"),
    *("linalg.vecdot", "linalg.multi_dot", "linalg.matrix_power", "linalg.lstsq", "linalg.pinv", "linalg.solve"),
    *("linalg.inv", "linalg.householder_product", "cholesky_inverse", "svd_lowrank", "pca_lowrank"),
    *("bmm.triton_optimized", "nn.functional.bilinear", "nn.functional.linear_cross_entropy"),
    *("nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"),
)
MODULES: Final = (
    *("Linear", "Bilinear", "RNNCell", "LSTMCell", "GRUCell", "RNN", "LSTM", "GRU", "MultiheadAttention"),
    *("Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoderLayer"),
)
_RECURRENT: Final = frozenset({"RNN", "LSTM", "GRU"})  # which are cuDNN's on a GPU, unless it is turned off

MAX_SAMPLES: Final = 24  # of one operator and type
MAX_OTHER_SAMPLES: Final = 6  # where it is open whether there is a product


@dataclass(frozen=True)
class Sample:
    """One call. `arguments` is a tree whose tensors may be replaced: by leaves for gradients, or by doubles."""

    name: str
    run: Callable[[Any], Any]
    arguments: Any
    finish: Callable[[Any], Any] = lambda result: result  # what torch differentiates of a result
    out: Callable[[Any, Tensor], Any] | None = None  # the call that writes its result
    in_place: Callable[[Any], Any] | None = None  # the call that writes its first argument
    is_product: bool = False
    has_second_gradients: bool = False
    has_gradients: bool = True


@dataclass(frozen=True)
class Error:
    """One call that torch answers with an exception."""

    name: str
    run: Callable[[], Any]


def database(module: str, name: str) -> list[Any]:
    """One of torch's databases. Where torch has moved it, or something that it needs is missing, this raises."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # torch.testing._internal.common_utils derives its TestCase from that of this package, which is not installed
        # everywhere. No sample is a TestCase, so one of the standard library stands in.
        stand_in = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    # When it is imported, common_utils forbids to set torch.backends.cudnn.enabled and its like from then on.
    with mock.patch.object(torch.backends, "disable_global_flags", lambda: None):
        found = list(getattr(importlib.import_module(f"torch.testing._internal.{module}"), name))
    assert len(found) >= 100, f"{name} has {len(found)} entries alone"
    return found


def operators() -> dict[str, Any]:
    """The operators by their names."""
    return {each.full_name: each for each in database("common_methods_invocations", "op_db")}


def modules() -> dict[str, Any]:
    """The modules by the names of their classes."""
    return {each.module_cls.__name__: each for each in database("common_modules", "module_db")}


def dtypes_of(entry: Any, device: str) -> tuple[torch.dtype, ...]:
    """Those of the lane that torch has there for an operator or a module."""
    supported = set(entry.supported_dtypes(device))
    return tuple(dtype for dtype in (*FLOATS, *INTEGERS) if dtype in supported)


def samples_of_operator(op: Any, device: str, dtype: torch.dtype, count: int = MAX_SAMPLES) -> tuple[list[Sample], int]:
    """Samples of an operator, and how many there are: of more than `count` they are taken from all over. Every second
    one has its tensors in other strides."""
    has_gradients = dtype.is_floating_point and op.supports_autograd and dtype in _differentiable(op, device)
    _seed(op.full_name)
    drawn = list(op.sample_inputs(device, dtype, requires_grad=has_gradients))

    def sample(index: int) -> Sample:
        x = drawn[index]
        if index % 2:
            x = x.noncontiguous()
        in_place = op.inplace_variant if op.full_name != "einsum" and not x.broadcasts_input else None
        return Sample(
            f"{op.full_name} of {_name(dtype)}, sample {index}",
            lambda arguments: _attending(index, lambda: op(arguments[0], *arguments[1], **arguments[2])),
            (x.input, tuple(x.args), dict(x.kwargs)),
            x.output_process_fn_grad or (lambda result: result),
            (lambda arguments, out: op(arguments[0], *arguments[1], **arguments[2], out=out))
            if op.supports_out
            else None,
            (lambda arguments: in_place(arguments[0], *arguments[1], **arguments[2])) if in_place else None,
            is_product=op.full_name in PRODUCTS,
            has_gradients=has_gradients,
            has_second_gradients=has_gradients and op.supports_gradgrad and dtype in (torch.float32, torch.float64),
        )

    return [sample(index) for index in _spread(len(drawn), count)], len(drawn)


def samples_of_module(
    info: Any, device: str, dtype: torch.dtype, training: bool, count: int = MAX_SAMPLES
) -> tuple[list[Sample], int]:
    """Samples of a module, of which the parameters are arguments, too."""
    name = info.module_cls.__name__
    _seed(name)
    drawn = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=True, training=training)

    def sample(index: int) -> Sample:
        constructor, forward = drawn[index].constructor_input, drawn[index].forward_input
        torch.manual_seed(index)
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(device=device, dtype=dtype).train(training)

        def run(arguments: Any) -> Any:
            parameters, args, kwargs = arguments
            without_cudnn = torch.backends.cudnn.flags(enabled=False) if name in _RECURRENT else nullcontext()
            with without_cudnn:
                return _attending(1, lambda: torch.func.functional_call(module, dict(parameters), args, dict(kwargs)))

        if info.is_lazy:
            module(*forward.args, **forward.kwargs)  # from now on it has parameters
        parameters = {key: value.detach().requires_grad_() for key, value in module.named_parameters()}
        return Sample(
            f"{name} of {_name(dtype)}, {'training' if training else 'evaluated'}, sample {index}",
            run,
            (parameters, tuple(forward.args), dict(forward.kwargs)),
            has_second_gradients=info.supports_gradgrad and dtype in (torch.float32, torch.float64),
        )

    has_call = [index for index, each in enumerate(drawn) if each.forward_input is not None]
    return [sample(has_call[index]) for index in _spread(len(has_call), count)], len(drawn)


def name_of(entry: Any) -> str:
    """The name of an operator or a module."""
    return str(entry.full_name if hasattr(entry, "full_name") else entry.module_cls.__name__)


def samples_of(entry: Any, device: str, dtype: torch.dtype, count: int = MAX_SAMPLES) -> tuple[list[Sample], int]:
    """Samples of an operator or a module, and how many there are."""
    if hasattr(entry, "full_name"):
        return samples_of_operator(entry, device, dtype, count)
    training, in_training = samples_of_module(entry, device, dtype, True, count)
    evaluated, in_evaluation = samples_of_module(entry, device, dtype, False, count)
    return [*training, *evaluated], in_training + in_evaluation


def errors_of(entry: Any, device: str) -> list[Error]:
    """Calls of an operator or a module that torch answers with an exception."""
    if hasattr(entry, "full_name"):
        return [*errors_of_operator(entry, device), *unsupported(entry, device)]
    return list(errors_of_module(entry, device))


def errors_of_operator(op: Any, device: str) -> Iterator[Error]:
    """Calls that torch's database says are wrong."""
    if op.error_inputs_func is None:
        return
    for index, each in enumerate(op.error_inputs(device)):
        x = each.sample_input
        yield Error(f"{op.full_name}, error {index}", lambda x=x: op(x.input, *x.args, **x.kwargs))  # type: ignore[misc]


def unsupported(op: Any, device: str) -> Iterator[Error]:
    """Calls of products with integers where torch multiplies none."""
    for dtype in INTEGERS:
        if op.full_name in PRODUCTS and dtype not in op.supported_dtypes(device):
            _seed(op.full_name)
            for x in list(op.sample_inputs(device, dtype, requires_grad=False))[:1]:
                yield Error(
                    f"{op.full_name} of {_name(dtype)}",
                    lambda x=x: op(x.input, *x.args, **x.kwargs),  # type: ignore[misc]
                )


def errors_of_module(info: Any, device: str) -> Iterator[Error]:
    """Calls and constructions that torch's database says are wrong."""
    if info.module_error_inputs_func is None:
        return
    found = info.module_error_inputs_func(info, device=device, dtype=torch.float32, requires_grad=False, training=False)
    for index, each in enumerate(found):
        constructor, forward = each.module_error_input.constructor_input, each.module_error_input.forward_input

        def run(constructor: Any = constructor, forward: Any = forward) -> Any:
            torch.manual_seed(0)
            module = info.module_cls(*constructor.args, **constructor.kwargs).to(device)
            return None if forward is None else module(*forward.args, **forward.kwargs)

        yield Error(f"{info.module_cls.__name__}, error {index}", run)


def as_doubles(arguments: Any) -> Any:
    """The same numbers as doubles, and the types that are named among the arguments."""
    wider = tree_map_only(
        Tensor,
        lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x,
        arguments,
    )
    return tree_map_only(torch.dtype, lambda x: torch.float64 if x.is_floating_point else x, wider)


def _attending(index: int, call: Callable[[], Any]) -> Any:
    """The call, in which every second attention consists of products: the others may be one fused kernel."""
    way: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH) if index % 2 else nullcontext()
    with way:
        return call()


def _differentiable(op: Any, device: str) -> set[torch.dtype]:
    return set(op.supported_backward_dtypes(device))


def _seed(name: str) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _spread(length: int, count: int) -> Sequence[int]:
    if length <= count:
        return range(length)
    return [index * length // count for index in range(count)]
