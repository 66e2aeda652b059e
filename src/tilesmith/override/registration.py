"""When torch's products are ours: what is registered with its dispatcher, from when to when."""

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch.library import Library

from tilesmith.core.recent import Recent
from tilesmith.override import stats
from tilesmith.override.operators import NAMES, Function, Watch, kernels
from tilesmith.override.routes import Routes
from tilesmith.override.settings import Choice, Settings
from tilesmith.runtime.registry import Executor, executor_on

_SETTINGS: Final = 8  # at least, and at most twice as many, whose decisions are kept for the next time that they hold
_MAX_REGISTRATIONS: Final = 64  # whose kernels live on for a while

_lock = threading.RLock()
_beginnings: Final[list[Callable[[], None]]] = []


class _Interceptor:
    """The products of one dispatch key. Several scopes may want them at once, each with settings of its own: it is the
    innermost one that holds, or else what `enable` was called with."""

    routes: Routes

    def __init__(self, key: str) -> None:
        self._key = key
        self._decided: Recent[tuple[Settings, Executor | None], Routes] = Recent(_SETTINGS)
        self._enabled: Settings | None = None
        self._scopes: tuple[Settings, ...] = ()
        self._library: Library | None = None
        self._times = False
        # Another thread may be on its way into a kernel while it is taken back: the last ones are not freed yet.
        self._kept: deque[list[object]] = deque(maxlen=_MAX_REGISTRATIONS)

    @property
    def settings(self) -> Settings | None:
        """Those that hold now, if there is an override."""
        return self._scopes[-1] if self._scopes else self._enabled

    def enable(self, settings: Settings | None) -> None:
        self._enabled = settings
        self._settle()

    def enter(self, settings: Settings) -> None:
        self._scopes = (*self._scopes, settings)
        self._settle()

    def leave(self, settings: Settings) -> None:
        # Another thread's scope may have begun since: this one need not be the last.
        self._scopes = tuple(scope for scope in self._scopes if scope is not settings)
        self._settle()

    def _settle(self) -> None:
        """Registers, or takes back, what the scopes now ask for."""
        settings = self.settings
        if settings is None:
            self._remove()
            return
        self._hold(settings)
        if self._library is None or self._times != settings.times:
            self._remove()
            self._install(settings.times)

    def _hold(self, settings: Settings) -> None:
        self.routes = self._routes_of(settings)

    def _routes_of(self, settings: Settings) -> Routes:
        """The routes under these settings, by who multiplies such tensors here and now."""
        executor = executor_on(self._key.lower())
        routes = self._decided.get((settings, executor))
        if routes is None:
            routes = self._decided[settings, executor] = Routes(settings, executor)
        return routes

    def _install(self, times: bool) -> None:
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", self._key):
            return  # a torch that was built without CUDA has no tensors there
        previous = {name: _previous(name, self._key) for name in NAMES}
        if times:
            watch = Watch(self, on_gpu=self._key == "CUDA")
            functions = {name: watch.timed(function) for name, function in kernels(watch, previous).items()}
        else:
            functions = kernels(self, previous)
        self._library, self._times = Library("aten", "IMPL"), times
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            for name, function in functions.items():
                self._library.impl(name, function, self._key, allow_override=True)
        self._kept.append([torch.library.get_kernel(f"aten::{name}", self._key) for name in NAMES])

    def _remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None


class _CpuInterceptor(_Interceptor):
    """The products of the CPU, whose executor is not the same for all threads: each call asks for it."""

    def _hold(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def routes(self) -> Routes:  # type: ignore[override]
        return self._routes_of(self._settings)


_cuda = _Interceptor("CUDA")
_cpu = _CpuInterceptor("CPU")


def _previous(name: str, key: str) -> Function:
    """The kernel that is registered now. It is given the backend's key alone: the rest of a call's keys are for
    those before it, and to hand them through Python takes microseconds."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", key):

        def missing(*_: Any, **__: Any) -> torch.Tensor:
            raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the '{key}' backend.")

        return missing
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed, keys)


def when_one_begins(call: Callable[[], None]) -> None:
    """Has a function called whenever an override begins."""
    _beginnings.append(call)


def _begin() -> str:
    """The type of device whose products are meant. What was counted before the first override is forgotten."""
    if _cuda.settings is None and _cpu.settings is None:
        stats.clear()
    for call in _beginnings:
        call()
    return "cuda" if executor_on("cpu") is None else "cpu"


def settings_in_force(device_type: str) -> Settings | None:
    """What products of this type of device are taken by, if there is an override."""
    return _of(device_type).settings


@contextmanager
def scope(device_type: str, settings: Settings) -> Iterator[None]:
    """Inside of it, products of this type of device are taken by these settings, which are no other scope's."""
    interceptor = _of(device_type)
    with _lock:
        interceptor.enter(settings)
    try:
        yield
    finally:
        with _lock:
            interceptor.leave(settings)


def _of(device_type: str) -> _Interceptor:
    return _cuda if device_type == "cuda" else _cpu


@contextmanager
def override(
    accuracy: str | None = None,
    include: Choice = None,
    exclude: Choice = None,
    min_flops: int = 0,
    *,
    times: bool = False,
) -> Iterator[None]:
    """Inside of it, torch's own products on CUDA go through Tilesmith: `@`, `nn.Linear`, `einsum`, all that ends in
    `mm`, `addmm`, `bmm` or `baddbmm`, in the backward pass too. What Tilesmith does not take, torch multiplies as
    before; `stats` says what and why.

    It holds for all threads: the backward pass has its own. An inner override replaces the outer one until its end.
    Inside of `tilesmith.emulate`, it is CPU tensors that are multiplied, by the emulated kernels.

    Args:
        accuracy: that of float32 products, as for `matmul`. None follows `torch.backends.cuda.matmul`.
        include, exclude: names among "mm", "addmm", "bmm" and "baddbmm"; or a function of a `Problem` (`m`, `n`, `k`,
            `batches`, `flops`, `a.dtype`...) that is asked once for operands of a kind.
        min_flops: products with fewer floating-point operations, `2 * m * n * k` of each matrix, stay with torch.
        times: whether `stats` has times too. They cost time themselves.

    >>> import tilesmith
    >>> with tilesmith.emulate(), override(exclude="bmm"):
    ...     torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 3))
    tensor([[3., 3.],
            [3., 3.]])
    """
    settings = Settings.of(accuracy, include, exclude, min_flops, times)
    with _lock:
        device_type = _begin()
    with scope(device_type, settings):
        yield


def enable(
    accuracy: str | None = None,
    include: Choice = None,
    exclude: Choice = None,
    min_flops: int = 0,
    *,
    times: bool = False,
) -> None:
    """Does what `override` does, from now on until `disable`. Called again, it replaces the settings.

    Args:
        accuracy, include, exclude, min_flops, times: as for `override`.

    >>> enable(min_flops=10**6)
    >>> disable()
    """
    settings = Settings.of(accuracy, include, exclude, min_flops, times)
    with _lock:
        _of(_begin()).enable(settings)


def disable() -> None:
    """Ends `enable`. Outside of any `override`, torch's kernels are then the ones that are registered, as before.

    >>> disable()
    """
    with _lock:
        for interceptor in (_cuda, _cpu):
            interceptor.enable(None)
