"""Who takes part in a measurement: our call and those of the opponents, and whether a result is right."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import tilesmith
from tilesmith.bench import timing
from tilesmith.bench.errors import Error, error
from tilesmith.bench.precision import best_class, bounds_of_product
from tilesmith.bench.results import AGAIN, OURS, TORCH
from tilesmith.bench.suites import OVERRIDDEN, Product, random_tensor
from tilesmith.bench.vocabulary import Opponent
from tilesmith.core.accuracy import Accuracy, resolve
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem

Call = Callable[[], Tensor]

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
_LARGEST_CHECKED: Final = 2**31  # elements of a result whose error is taken; float64 takes memory and time
_BYTES: Final = (torch.int8, torch.uint8)
_LARGEST_NORM: Final = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2, "bf16": 2e-2}  # with an epilogue


class WrongResultError(RuntimeError):
    """A competitor's result is not the product: a time of it would mean nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do a product."""

    call: Call
    precision: str
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # what holds while it is called

    @property
    def alone(self) -> Call:
        """The call, with what is around it entered each time."""
        return self.call if self.around is nullcontext else self._within

    def _within(self) -> Tensor:
        with self.around():
            return self.call()


@dataclass(frozen=True, slots=True)
class Operands:
    """What a product multiplies, and what it adds."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    residual: Tensor | None

    @property
    def out_dtype(self) -> torch.dtype | None:
        """Sums of bytes seldom fit into bytes."""
        return torch.int32 if self.a.dtype in _BYTES else None

    @classmethod
    def of(cls, product: Product, device: torch.device | str, seed: int = 0) -> "Operands":
        """Fresh random ones."""
        a, b = product.operands(device, seed)
        if product.operator == "linear":
            b = b / math.sqrt(product.k)  # a layer's weight: activations get sums of about 1
        bias = random_tensor((product.n,), a.dtype, device) if product.bias else None
        residual = random_tensor((*a.shape[:-1], product.n), a.dtype, device) if product.residual else None
        return cls(a, b, bias, residual)

    def problem(self, product: Product, accuracy: Accuracy) -> Problem:
        """What the planner is asked."""
        activation = None if product.activation == "none" else product.activation
        has_epilogue = product.bias or product.residual or activation is not None
        return Problem.of(
            *(self.a, self.b),
            accuracy=accuracy,
            out_dtype=self.out_dtype,
            packed=(product.packed == "both", product.packed != "none"),
            epilogue=Epilogue(self.bias, activation, self.residual) if has_epilogue else None,
        )


def precision_of(dtype: str, accuracy: Accuracy) -> str:
    """The precision class of our results: that of the type, but for float32, which may be asked to be TF32."""
    precision = best_class(getattr(torch, dtype)) or "int"
    return "tf32" if precision == "fp32" and accuracy == "tf32" else precision


def contenders(
    product: Product, operands: Operands, accuracy: Accuracy | None, against: tuple[Opponent, ...]
) -> dict[str, Contender]:
    """Ours first, then the opponents that have such a product. Two torchs tell how large the noise is."""
    precision, own = precision_of(product.dtype, resolve(accuracy)), precision_of(product.dtype, "fp32")
    around = partial(tilesmith.override, accuracy) if product.operator in OVERRIDDEN else nullcontext
    found = {OURS: Contender(ours(product, operands, accuracy), precision, around)}
    if not operands.a.dtype.is_floating_point and not _has_int_mm(product):
        return found  # torch has no other product of integers on a GPU
    theirs = torchs(product, operands)
    if "torch" in against:
        found[TORCH] = Contender(theirs, own)
        if product.clock == "gpu":
            found[AGAIN] = found[TORCH]
    if "torch-tf32" in against and product.dtype == "float32":
        found["torch-tf32"] = Contender(theirs, "tf32", partial(timing.float32_precision, "tf32"))
    if "torch-compile" in against:
        torch.compiler.reset()  # after a few programs of the same lines it would compile no more
        found["torch-compile"] = Contender(torch.compile(theirs), own)
    if "triton" in against and operands.a.dtype.itemsize < 8 and product.operator == "matmul":
        from tilesmith.bench.triton_product import multiply

        found["triton"] = Contender(partial(multiply, operands.a, operands.b, tf32=precision == "tf32"), precision)
    return found


def ours(product: Product, operands: Operands, accuracy: Accuracy | None) -> Call:
    """Our call. For an operator of torch's it is the same one as theirs, and needs an override around it."""
    a, b = operands.a, operands.b
    match product.operator:
        case "matmul":
            first: Any = tilesmith.pack(a, first=True, accuracy=accuracy) if product.packed == "both" else a
            second: Any = b if product.packed == "none" else tilesmith.pack(b, accuracy=accuracy)
            return partial(tilesmith.matmul, first, second, accuracy=accuracy, out_dtype=operands.out_dtype)
        case "dispatched":
            return partial(torch.ops.tilesmith.matmul, a, b)
        case "linear":
            activation = None if product.activation == "none" else product.activation
            more: dict[str, Any] = {"activation": activation, "residual": operands.residual, "accuracy": accuracy}
            return partial(tilesmith.linear, a, b.mT, operands.bias, **more)
        case _:
            return torchs(product, operands)


def torchs(product: Product, operands: Operands) -> Call:
    """What a program without Tilesmith would call."""
    a, b, bias, residual = operands.a, operands.b, operands.bias, operands.residual
    if _has_int_mm(product):
        return partial(torch._int_mm, a, b)
    if product.operator in ("matmul", "dispatched"):
        return partial(torch.matmul, a, b)
    if product.operator != "linear":
        addend = bias if residual is None else residual
        return partial(getattr(torch, product.operator), *(() if addend is None else (addend,)), a, b)
    if bias is None and residual is not None and product.activation == "none" and a.dim() == 2:
        return partial(torch.addmm, residual, a, b)
    return partial(_linear, a, b.mT, bias, residual, _ACTIVATIONS[product.activation])


def _has_int_mm(product: Product) -> bool:
    """Whether torch's product of int8 takes these sizes."""
    is_plain = product.operator == "matmul" and product.dtype == "int8" and not product.batch
    return is_plain and product.m > 16 and product.k % 8 == product.n % 8 == 0


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    result = activation(functional.linear(x, weight, bias))
    return result if residual is None else result + residual


def checked(name: str, contender: Contender, product: Product, operands: Operands) -> Error | None:
    """The errors of one result; None where none are taken. The memory that results get was poisoned, so that what is
    not written shows. WrongResultError if it is not the product."""
    a, b = operands.a, operands.b
    poison = torch.full((a.shape[-2] * b.shape[-1] * max(product.batch, 1),), math.nan, device=a.device)
    del poison
    with contender.around():
        result = contender.call()
    if not a.dtype.is_floating_point:
        if a.dtype in _BYTES and result.numel() <= _LARGEST_CHECKED and not torch.equal(result, _exact_sums(a, b)):
            raise WrongResultError(f"{product.name}: the result of {name} is wrong")
        return None
    if not bool(result.isfinite().all()):
        raise WrongResultError(f"{product.name}: the result of {name} is not finite")
    if result.numel() > _LARGEST_CHECKED:
        return None
    if operands.bias is None and operands.residual is None and product.activation == "none":
        found = error(result, a, b)
        is_wrong = not found.comp <= bounds_of_product(product.k, 0.0)[contender.precision]
    else:
        found = Error(math.nan, _norm_with_epilogue(result, product, operands))
        is_wrong = not found.norm <= _LARGEST_NORM[contender.precision]
    if is_wrong:
        raise WrongResultError(f"{product.name}: the result of {name} is wrong, its errors are {found}")
    return found


def _exact_sums(a: Tensor, b: Tensor) -> Tensor:
    """Of bytes: doubles have them exactly."""
    return torch.matmul(a.double(), b.double()).long().to(torch.int32)


def _norm_with_epilogue(result: Tensor, product: Product, operands: Operands) -> float:
    """The Frobenius norm of what is wrong, relative to that of the result in float64."""
    sums = torch.matmul(operands.a.double(), operands.b.double())
    if operands.bias is not None:
        sums += operands.bias
    exact = _ACTIVATIONS[product.activation](sums)
    if operands.residual is not None:
        exact = exact + operands.residual
    return float((result.double() - exact).norm() / exact.norm())
