"""Where a product goes: decided once for operands of a kind, and looked up from then on."""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

import torch

from tilesmith import accuracy as accuracies
from tilesmith import device as devices
from tilesmith import emulator, prepared
from tilesmith.device import Device
from tilesmith.epilogue import Epilogue
from tilesmith.errors import ColdCaptureError
from tilesmith.overriding.settings import Settings
from tilesmith.overriding.tallies import Tally, Where, tally
from tilesmith.overriding.torchs import torch_is_faster
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import Problem

# Of (a, b) or (a, b, out); for the sum with c of (a, b, c), and with factors of (a, b, out, None, epilogue).
Run = Callable[..., torch.Tensor]
Route = tuple[Run | None, Tally]  # who multiplies, or None for torch; and who counts

_MOST_ROUTES: Final = 8192  # as many as prepared products: past that all are decided anew
_TAKEN: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_FLOAT32: Final = torch.float32
ONE: Final = 1  # what factors are as a rule; others that are equal to it take the longer way
_WIDER: Final = (torch.float16, torch.bfloat16)  # have a float32 result if it is asked for

shares_memory = torch._C._is_alias_of  # type: ignore[attr-defined]


# What `addmm` makes of a product: c, beta and alpha of `beta * c + alpha * product`.
Addition = tuple[torch.Tensor, Any, Any]
Factors = tuple[Any, Any]  # beta and alpha, where they need not be ONE


def epilogue_of(addition: Addition) -> Epilogue:
    """A beta of 0 ignores c, NaNs included, as in torch. A row that is added to all of them is a bias."""
    c, beta, alpha = addition
    if beta == 1:
        return Epilogue(c, None, None, alpha) if _is_row(c) else Epilogue(None, None, c, alpha)
    return Epilogue(scale=alpha) if beta == 0 else Epilogue(None, None, c, alpha, beta)


def _is_row(c: torch.Tensor) -> bool:
    return c.dim() == 1 and c.numel() > 1


def _kind_of(factor: Any) -> str:
    """All of a factor that decides who multiplies, and how."""
    if type(factor) is complex:
        return "complex"
    return "0" if factor == 0 else "1" if factor == 1 else "any"


class Routes:
    """The routes of one kind of tensors under one choice of settings."""

    # What a decision depends on besides the operands, and torch's own setting of the accuracy of float32.
    _emulation: Hashable = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known: dict[Hashable, Route] = {}
        self._deciding = threading.local()
        self._precision: Callable[[], str] = partial(torch._C._get_fp32_precision_getter, "cuda", "matmul")

    def find(
        self,
        operator: str,
        a: torch.Tensor,
        b: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        c: torch.Tensor | None = None,
        factors: Factors | None = None,
    ) -> Route:
        """The route of a call; of the sum with c, if there is one, and of that with factors, if they are given."""
        key: tuple[object, ...] = (
            operator,
            self._emulation,
            self._precision() if a.dtype is _FLOAT32 else None,
            out_dtype,
            a.shape,
            a.stride(),
            a.dtype,
            a.data_ptr() & 15,
            a.get_device(),
            b.shape,
            b.stride(),
            b.dtype,
            b.data_ptr() & 15,
            b.get_device(),
        )
        if c is not None:
            key += (c.shape, c.stride(), c.dtype, c.data_ptr() & 15, c.get_device())
            if factors is not None:
                key += tuple(map(_kind_of, factors))
        if out is not None:
            shares = shares_memory(out, a) or shares_memory(out, b)
            key += (out.shape, out.stride(), out.dtype, out.data_ptr() & 15, out.get_device(), shares)
        route = self._known.get(key)
        return self._decided(key, operator, a, b, out_dtype, out, c, factors) if route is None else route

    def device(self, a: torch.Tensor) -> Device | None:
        """The GPU of the operands; None if it is not there."""
        return devices.installed(a.get_device())

    def runner(self, plan: Plan, a: torch.Tensor) -> Run:
        """What multiplies such operands from now on."""
        return prepared.prepare(plan, a.get_device())

    def adding(self, run: Any, c: torch.Tensor) -> Run:
        """The same for a sum with such a c."""
        return run.add_bias if _is_row(c) else run.add_residual  # type: ignore[no-any-return]

    def _decided(
        self,
        key: Hashable,
        operator: str,
        a: torch.Tensor,
        b: torch.Tensor,
        out_dtype: torch.dtype | None,
        out: torch.Tensor | None,
        c: torch.Tensor | None,
        factors: Factors | None,
    ) -> Route:
        def route(run: Run | None, reason: str) -> Route:
            where: Where = "torch" if run is None else "tilesmith"
            return run, tally((operator, tuple(a.shape), tuple(b.shape), a.dtype, where, reason))

        if getattr(self._deciding, "now", False):
            return route(None, "called while another product was planned")
        self._deciding.now = True
        try:
            with torch.no_grad():  # the operands of a kernel may want gradients: those are autograd's concern
                decided = route(*self._decide(operator, a, b, out_dtype, out, c, factors))
        except ColdCaptureError:
            return route(None, "a CUDA graph is captured, and the kernel is not loaded yet")
        finally:
            self._deciding.now = False
        if len(self._known) >= _MOST_ROUTES:
            self._known.clear()
        self._known[key] = decided
        return decided

    def _decide(
        self,
        operator: str,
        a: torch.Tensor,
        b: torch.Tensor,
        out_dtype: torch.dtype | None,
        out: torch.Tensor | None,
        c: torch.Tensor | None,
        factors: Factors | None,
    ) -> tuple[Run | None, str]:
        addition = None if c is None else (c, *(factors or (ONE, ONE)))
        reason = self.settings.leaves(operator) or _unfit(operator, a, b, out_dtype, out, addition)
        if reason is not None:
            return None, reason
        device = self.device(a)
        if device is None:
            return None, "on the CPU, outside of tilesmith.emulate"
        accuracy = accuracies.resolve(self.settings.accuracy)
        epilogue = None if addition is None else epilogue_of(addition)
        problem = Problem.of(a, b, accuracy=accuracy, out_dtype=out_dtype, out=out, epilogue=epilogue)
        reason = self.settings.leaves_problem(problem)
        if reason is not None:
            return None, reason
        plan = choose(problem, device)
        reason = torch_is_faster(plan)
        if reason is not None:
            return None, reason
        run = self.runner(plan, a)
        return run if c is None or factors is not None else self.adding(run, c), plan.name


class EmulatedRoutes(Routes):
    """The routes of CPU tensors, in the threads that are inside of `tilesmith.emulate`."""

    @property
    def _emulation(self) -> Hashable:  # type: ignore[override]
        return emulator.active()

    def device(self, a: torch.Tensor) -> Device | None:
        emulation = emulator.active()
        return None if emulation is None else emulation.device

    def runner(self, plan: Plan, a: torch.Tensor) -> Run:
        emulation = emulator.active()
        seed = None if emulation is None else emulation.seed

        def run(
            a: torch.Tensor,
            b: torch.Tensor,
            out: torch.Tensor | None = None,
            packed: None = None,
            epilogue: Epilogue | None = None,
        ) -> torch.Tensor:
            return emulator.run(plan, a, b, out=out, epilogue=epilogue, seed=seed)

        return run

    def adding(self, run: Any, c: torch.Tensor) -> Run:
        return lambda a, b, c: run(a, b, None, None, epilogue_of((c, ONE, ONE)))


def _unfit(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype | None,
    out: torch.Tensor | None,
    addition: Addition | None,
) -> str | None:
    """Why these are not for us. Calls that are wrong are among them: torch says so best."""
    rank = 3 if operator in ("bmm", "baddbmm") else 2
    if a.dtype not in _TAKEN:
        return f"{str(a.dtype).removeprefix('torch.')} is left to torch"
    if a.dtype != b.dtype or a.device != b.device:
        return "operands of two types or devices"
    if out_dtype not in (None, a.dtype) and not (out_dtype == torch.float32 and a.dtype in _WIDER):
        return "a result of this type"
    if a.dim() != rank or b.dim() != rank or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return "shapes that have no product"
    if a.numel() == 0 or b.numel() == 0:
        return "an empty operand"
    dtype, shape = out_dtype or a.dtype, (*a.shape[:-1], b.shape[-1])
    reason = None if addition is None else _unfit_addition(addition, a, dtype, shape)
    return reason if reason is not None or out is None else _unfit_out(out, a, b, dtype, shape)


def _unfit_addition(addition: Addition, a: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> str | None:
    c, beta, alpha = addition
    if c.device != a.device or c.dtype not in (a.dtype, dtype):
        return "an addend of another type or device"
    if type(beta) is complex or type(alpha) is complex:
        return "a complex factor"
    padded = (1,) * (len(shape) - c.dim()) + tuple(c.shape)
    if len(padded) != len(shape) or any(size not in (1, whole) for size, whole in zip(padded, shape, strict=True)):
        return "an addend that does not expand to the product"
    return None


def _unfit_out(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> str | None:
    if shares_memory(out, a) or shares_memory(out, b):
        return "an out in the memory of an operand"
    if tuple(out.shape) != shape or out.dtype != dtype or out.device != a.device:
        return "an out of another size, type or device"
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        return "an out that overlaps itself"
    return None
