"""The place in a compiled program where a product is launched.

Inductor's code makes a `Site` where it is loaded, one for each kind of product that it has, and calls it with tensors.
Where sizes and strides are numbers, the site knows its launch after the first call: there is no key to be made and
nothing to be looked up.
"""

from typing import Any

import torch
from torch import Tensor

from tilesmith.core.accuracy import numerics
from tilesmith.core.epilogue import Epilogue
from tilesmith.override.stats import call_count
from tilesmith.runtime.executor import CompiledPlan, eight_bytes, planned
from tilesmith.runtime.registry import DeferredError, executor_on
from tilesmith.torch_ops.product import composed

_UNALIGNED = 15  # bits of an address that are 0 where torch's allocator put it


class Site:
    """A product and its epilogue, all but their tensors. Call it with a, b, the bias and the residual if it has them,
    and `out`."""

    __slots__ = (
        *("_accuracy", "_activation", "_count", "_factors", "_has_bias", "_has_residual", "_is_plain", "_is_static"),
        *("_operator", "_out_dtype", "_residual_scale", "_run", "_scale"),
    )

    def __init__(
        self,
        operator: str,
        accuracy: str | None = None,
        out_dtype: torch.dtype | None = None,
        activation: str | None = None,
        scale: float = 1.0,
        residual_scale: float = 1.0,
        has_bias: bool = False,
        has_residual: bool = False,
        layouts: Any = None,
    ) -> None:
        self._operator, self._accuracy, self._out_dtype = operator, accuracy, out_dtype
        self._activation, self._scale, self._residual_scale = activation, scale, residual_scale
        self._has_bias, self._has_residual = has_bias, has_residual
        self._is_static = layouts is not None  # the sizes and strides of all operands, which are those of every call
        self._is_plain = not has_bias and not has_residual and activation is None and scale == 1
        self._factors = eight_bytes(scale, residual_scale)
        self._run: CompiledPlan | None = None

    def __call__(self, a: Tensor, b: Tensor, *added: Tensor, out: Tensor) -> None:
        run, a_at, b_at = self._run, a.data_ptr(), b.data_ptr()
        addresses = a_at | b_at | out.data_ptr()
        epilogue: tuple[int, ...] = ()
        if not self._is_plain:
            bias_at = added[0].data_ptr() if self._has_bias else 0
            residual_at = added[-1].data_ptr() if self._has_residual else 0
            addresses |= bias_at | residual_at
            epilogue = (0, 0, bias_at, residual_at, self._factors)
        is_aligned = not addresses & _UNALIGNED
        if run is None or not is_aligned:
            self._otherwise(a, b, added, out, is_aligned)
            return
        self._count.calls += 1
        run.at(a_at, b_at, out, epilogue)

    def _epilogue(self, added: tuple[Tensor, ...]) -> Epilogue:
        bias = added[0] if self._has_bias else None
        residual = added[-1] if self._has_residual else None
        return Epilogue(bias, self._activation, residual, self._scale, self._residual_scale)

    def _otherwise(self, a: Tensor, b: Tensor, added: tuple[Tensor, ...], out: Tensor, is_aligned: bool) -> None:
        """Finds the launch; or has others multiply, where none is to be kept."""
        epilogue = self._epilogue(added)
        executor = executor_on(a.device.type)
        if executor is None:
            out.copy_(composed(a, b, epilogue, self._out_dtype))
            return
        what = None if self._is_plain else epilogue
        resolved = numerics(self._accuracy, a.dtype)
        try:
            if not self._is_static or not is_aligned:
                executor.multiply(a, b, resolved, self._out_dtype, out, None, what)
                self._counted(a, b, "in a compiled program")
                return
            plan = planned(a, b, executor.gpu_of(a), resolved, self._out_dtype, out, None, what)
            assert plan is not None  # operands are of one type
            run = executor.compiled(plan, a.get_device())
            run(a, b, out, None, what)
        except DeferredError:  # the plan is noted, and will be ready the next time
            out.copy_(composed(a, b, epilogue, self._out_dtype))
            return
        self._counted(a, b, plan.name)
        if isinstance(run, CompiledPlan):
            self._run = run

    def _counted(self, a: Tensor, b: Tensor, reason: str) -> None:
        kind = (self._operator, tuple(a.shape), tuple(b.shape), a.dtype, "tilesmith", reason)
        self._count = call_count(kind)  # type: ignore[arg-type]
        self._count.calls += 1
