"""Where a product goes: decided once for operands of a kind, and looked up from then on."""

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tilesmith.core.accuracy import DEFAULT, Numerics, numerics
from tilesmith.core.call_key import CallKey, call_key
from tilesmith.core.checks import SIXTEEN_BITS, can_be_broadcast, overlaps_itself
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.errors import ColdCaptureError
from tilesmith.core.problem import Problem
from tilesmith.core.recent import Recent
from tilesmith.override.cutover import torch_is_faster
from tilesmith.override.settings import OPERATORS, Settings
from tilesmith.override.stats import CallCount, Where, call_count
from tilesmith.planner import choose
from tilesmith.runtime.executor import COMPILED_PLANS
from tilesmith.runtime.registry import DeferredError, Executor

# Called with (a, b) or (a, b, out); for the sum with c with (a, b, c); for one with factors with
# (a, b, out, None, epilogue).
Run = Callable[..., Tensor]
Route = tuple[Run | None, CallCount]  # who multiplies, or None for torch; and who counts

_TAKEN: Final = frozenset({torch.float32, *SIXTEEN_BITS})
_FLOAT32: Final = torch.float32
_MAX_FLOAT32: Final = torch.finfo(torch.float32).max
ONE: Final = 1  # what factors are as a rule; others that are equal to it take the longer way

shares_memory = torch._C._is_alias_of  # type: ignore[attr-defined]

# What `addmm` makes of a product: c, beta and alpha of `beta * c + alpha * product`.
Addition = tuple[Tensor, Any, Any]
Factors = tuple[Any, Any]  # beta and alpha, where they need not be ONE


def epilogue_of(addition: Addition) -> Epilogue:
    """What a kernel makes of it. A beta of 0 ignores c, NaNs included, as in torch. A row that is added to all of them
    is a bias."""
    c, beta, alpha = addition
    if beta == 1:
        return Epilogue(c, None, None, alpha) if _is_row(c) else Epilogue(None, None, c, alpha)
    return Epilogue(scale=alpha) if beta == 0 else Epilogue(None, None, c, alpha, beta)


def _is_row(c: Tensor) -> bool:
    return c.dim() == 1 and c.numel() > 1


def _kind_of(factor: Any) -> str:
    """All of a factor that decides who multiplies, and how."""
    if type(factor) is complex:
        return "complex"
    if not abs(factor) <= _MAX_FLOAT32:
        return "beyond float32"
    return "0" if factor == 0 else "1" if factor == 1 else "any"


class Routes:
    """The routes of one kind of tensors, whom one executor multiplies, under one choice of settings."""

    def __init__(self, settings: Settings, executor: Executor | None) -> None:
        self.settings = settings
        self._executor = executor
        self._known: dict[str, Recent[CallKey, Route]] = {operator: Recent(COMPILED_PLANS) for operator in OPERATORS}
        self._young = {operator: known.young for operator, known in self._known.items()}
        self._deciding = threading.local()
        self._asked = settings.numerics

    def find(
        self,
        operator: str,
        a: Tensor,
        b: Tensor,
        out_dtype: torch.dtype | None = None,
        out: Tensor | None = None,
        c: Tensor | None = None,
        factors: Factors | None = None,
    ) -> Route:
        """The route of a call; of the sum with c, if there is one, and of that with factors, if they are given."""
        resolved = self._asked or (numerics(None) if a.dtype is _FLOAT32 else DEFAULT)
        if out is None:
            key = call_key(resolved, a, b, out_dtype) if c is None else call_key(resolved, a, b, out_dtype, None, c)
        else:
            shares = shares_memory(out, a) or shares_memory(out, b)
            key = call_key((resolved, shares), a, b, out_dtype, out, c)
        if factors is not None:
            key += tuple(map(_kind_of, factors))
        route = self._young[operator].get(key) or self._known[operator].get(key)
        if route is None:
            addition = None if c is None else (c, *(factors or (ONE, ONE)))
            call = _Call(operator, a, b, out_dtype, out, addition, factors is not None)
            route = self._decided(key, resolved, call)
        return route

    def _decided(self, key: CallKey, resolved: Numerics, call: "_Call") -> Route:
        def route(run: Run | None, reason: str) -> Route:
            where: Where = "torch" if run is None else "tilesmith"
            kind = (call.operator, tuple(call.a.shape), tuple(call.b.shape), call.a.dtype, where, reason)
            return run, call_count(kind)

        if getattr(self._deciding, "now", False):
            return route(None, "called while another product was planned")
        self._deciding.now = True
        try:
            with torch.no_grad():  # the operands of a kernel may want gradients: those are autograd's concern
                decided = route(*self._decide(resolved, call))
        except ColdCaptureError:
            return route(None, "a CUDA graph is captured, and the kernel is not loaded yet")
        except DeferredError:
            return route(None, "tilesmith.warmup is at it, and the kernel is not loaded yet")
        finally:
            self._deciding.now = False
        self._known[call.operator][key] = decided
        return decided

    def _decide(self, resolved: Numerics, call: "_Call") -> tuple[Run | None, str]:
        reason = self.settings.leaves(call.operator) or _unfit(call)
        if reason is not None:
            return None, reason
        if self._executor is None:
            return None, "on the CPU, outside of tilesmith.emulate"
        a, addition = call.a, call.addition
        epilogue = None if addition is None else epilogue_of(addition)
        problem = Problem.of(
            *(a, call.b), accuracy=resolved.accuracy, out_dtype=call.out_dtype, out=call.out, epilogue=epilogue
        )
        reason = self.settings.leaves_problem(problem)
        if reason is not None:
            return None, reason
        plan = choose(problem, self._executor.gpu_of(a))
        reason = torch_is_faster(plan)
        if reason is not None:
            return None, reason
        run = self._executor.compiled(plan, a.get_device())
        if addition is None or call.has_factors:
            return run, plan.name
        return run.add_bias if _is_row(addition[0]) else run.add_residual, plan.name


class _Call(NamedTuple):
    """A call whose route is not known yet."""

    operator: str
    a: Tensor
    b: Tensor
    out_dtype: torch.dtype | None
    out: Tensor | None
    addition: Addition | None
    has_factors: bool  # that may be another than ONE in the next call


def _unfit(call: _Call) -> str | None:
    """Why these are not for us. Calls that are wrong are among them: torch says so best."""
    operator, a, b, out_dtype, out, addition, _ = call
    rank = 3 if operator in ("bmm", "baddbmm") else 2
    if a.dtype not in _TAKEN:
        return f"{str(a.dtype).removeprefix('torch.')} is left to torch"
    if a.dtype != b.dtype or a.device != b.device:
        return "operands of two types or devices"
    if out_dtype not in (None, a.dtype) and not (out_dtype == torch.float32 and a.dtype in SIXTEEN_BITS):
        return "a result of this type"
    if a.dim() != rank or b.dim() != rank or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return "shapes that have no product"
    if a.numel() == 0 or b.numel() == 0:
        return "an empty operand"
    dtype, shape = out_dtype or a.dtype, (*a.shape[:-1], b.shape[-1])
    reason = None if addition is None else _unfit_addition(addition, a, dtype, shape)
    return reason if reason is not None or out is None else _unfit_out(out, a, b, dtype, shape)


def _unfit_addition(addition: Addition, a: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> str | None:
    c, beta, alpha = addition
    if c.device != a.device or c.dtype not in (a.dtype, dtype):
        return "an addend of another type or device"
    kinds = _kind_of(beta), _kind_of(alpha)
    if "complex" in kinds:
        return "a complex factor"
    if "beyond float32" in kinds:
        return "a factor that is no finite float32"
    if kinds[1] == "0":
        return "a factor of 0, which leaves out the product"
    if not can_be_broadcast(c.shape, shape):
        return "an addend that does not expand to the product"
    return None


def _unfit_out(out: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> str | None:
    if shares_memory(out, a) or shares_memory(out, b):
        return "an out in the memory of an operand"
    if tuple(out.shape) != shape or out.dtype != dtype or out.device != a.device:
        return "an out of another size, type or device"
    if overlaps_itself(out):
        return "an out that overlaps itself"
    return None
