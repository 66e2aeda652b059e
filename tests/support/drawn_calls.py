"""The tensors of a drawn product, and the call that multiplies them."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from drawn_cases import Case, Layout
from drawn_plans import Planned, epilogue_of
from guarded import Guarded, poison
from torch import Tensor

import tilesmith
from tilesmith.bench import distributions
from tilesmith.core.accuracy import numerics
from tilesmith.runtime.registry import executor_on

# Whole ranges of the narrow integers; of the others so much that no sum of the longest products leaves 53 bits.
_BITS_OF_A = {torch.int32: 24, torch.int64: 24}
_BITS_OF_B = {torch.int32: 12, torch.int64: 12}


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a case multiplies and adds, each in the midst of poison; and where it writes, if the call says where."""

    a: Guarded
    b: Guarded
    bias: Guarded | None
    residual: Guarded | None
    out: Guarded | None

    @property
    def guarded(self) -> list[Guarded]:
        """All of them."""
        return [x for x in (self.a, self.b, self.bias, self.residual, self.out) if x is not None]


def tensors_of(case: Case, device: str) -> Tensors:
    """The same values in every run."""
    seed = zlib.crc32(f"{case.seed}/{case.index}".encode())
    generator = torch.Generator(device).manual_seed(seed)
    a, b = _integers(case, generator) if case.values == "integers" else _floats(case, device, seed, generator)
    bias, residual = (
        None if x is None else torch.randn(x.shape, generator=generator, device=device, dtype=torch.float64)
        for x in (case.bias, case.residual)
    )
    if residual is not None and case.residual_scale == 0:
        residual = torch.full_like(residual, math.nan)  # it must not be read
    return Tensors(
        a=_placed(a, case.a, device),
        b=_placed(b, case.b, device),
        bias=None if case.bias is None or bias is None else _placed(bias, case.bias, device),
        residual=None if case.residual is None or residual is None else _placed(residual, case.residual, device),
        out=None if case.out is None else _empty(case.out, device),
    )


def _floats(case: Case, device: str, seed: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    k, rows, columns = case.k, math.prod(case.a.shape[:-1]), math.prod(case.b.shape) // max(case.k, 1)
    if k * rows * columns == 0:
        return torch.zeros(case.a.shape, device=device), torch.zeros(case.b.shape, device=device)
    a, b = distributions.operands(case.values, rows, k, columns, device, seed)
    *batch, _, n = case.b.shape if len(case.b.shape) > 1 else (k, 1)
    b = b.view(k, math.prod(batch), n).transpose(0, 1)
    if case.call == "linear":
        b = b * 2.0 ** -round(math.log2(k) / 2)  # a layer's weight: activations get sums of about 1
    if case.a.dtype == torch.float64:  # all of its bits
        a, b = (x * (1 + 2.0**-30 * torch.rand(x.shape, generator=generator, device=device).double()) for x in (a, b))
    return a.reshape(case.a.shape), b.reshape(case.b.shape)


def _integers(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    def drawn(layout: Layout, bits: int | None) -> Tensor:
        limits = torch.iinfo(layout.dtype)
        least, most = (limits.min, limits.max) if bits is None else (-(2**bits), 2**bits)
        return torch.randint(least, most + 1, layout.shape, generator=generator, device=generator.device)

    return drawn(case.a, _BITS_OF_A.get(case.a.dtype)), drawn(case.b, _BITS_OF_B.get(case.b.dtype))


def _empty(layout: Layout, device: str) -> Guarded:
    return Guarded.empty(layout.shape, layout.strides, layout.dtype, layout.offset, device)


def _placed(values: Tensor, layout: Layout, device: str) -> Guarded:
    """The values where the layout has them. Those along a stride of 0 are the first one."""
    guarded = _empty(layout, device)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in layout.strides)
    guarded.tensor[distinct] = values[distinct].to(layout.dtype)
    return guarded


def multiply(case: Case, planned: Planned, tensors: Tensors) -> Tensor:
    """What the call of a case returns. What it allocates by itself is memory that was poisoned."""
    call = call_of(case, planned, tensors)
    poison_result(case, tensors)
    return call()


def call_of(case: Case, planned: Planned, tensors: Tensors) -> Callable[[], Tensor]:
    """The call of a case, whose operands are packed once."""
    a, b = tensors.a.tensor, tensors.b.tensor
    bias, residual, out = (None if x is None else x.tensor for x in (tensors.bias, tensors.residual, tensors.out))
    if case.call == "override" and planned.goes_by_override:
        added = residual if bias is None else bias
        return partial(_under_override, case.accuracy, _torchs_operator(case, a, b, added, out))
    if case.call in ("addmm", "override"):
        executor = executor_on(a.device.type)
        assert executor is not None
        resolved, epilogue = numerics(case.accuracy, a.dtype), epilogue_of(case, bias, residual)
        return partial(executor.multiply, a, b, resolved, case.out_dtype, out, epilogue=epilogue)
    first = tilesmith.pack(a, first=True, accuracy=case.accuracy) if case.packed[0] else a
    second = tilesmith.pack(b, accuracy=case.accuracy) if case.packed[1] else b
    if case.call == "matmul":
        how: dict[str, Any] = {"accuracy": case.accuracy, "out_dtype": case.out_dtype, "out": out}
        return partial(tilesmith.matmul, first, second, **how)
    weight = second if isinstance(second, tilesmith.Packed) else b.mT
    how = {"activation": case.activation, "residual": residual}
    return partial(tilesmith.linear, a, weight, bias, **how, accuracy=case.accuracy, out_dtype=case.out_dtype)


def _under_override(accuracy: str | None, call: Callable[[], Tensor]) -> Tensor:
    with tilesmith.override(accuracy):
        return call()


def _torchs_operator(case: Case, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> Callable[[], Tensor]:
    if c is None:
        return partial(torch.mm if a.dim() == 2 else torch.bmm, a, b, out=out)
    add = torch.addmm if a.dim() == 2 else torch.baddbmm
    return partial(add, c, a, b, beta=case.residual_scale, alpha=case.scale, out=out)


def poison_result(case: Case, tensors: Tensors) -> None:
    """Fills `out` with NaNs; or has the allocator keep a block of the result's size that is full of them."""
    if tensors.out is not None:
        tensors.out.tensor.fill_(poison(case.dtype))
    else:
        torch.full(case.shape, poison(case.dtype), dtype=case.dtype, device=tensors.a.tensor.device)
