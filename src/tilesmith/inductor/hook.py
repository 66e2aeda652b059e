"""How the pass gets into Inductor: when that is imported, and not before.

To import Inductor takes a second or more, which a program that compiles nothing should not pay for an override. So the
first override asks to be told when it is imported; where it has been, the pass is registered at once.

The pass is registered by the type of device, which holds for all threads. Inductor's configuration has a place for
passes too; but in newer releases that is each thread's own, and backward graphs are compiled by autograd's.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import torch

from tilesmith.override import registration

_COMPILER: Final = "torch._inductor.compile_fx"  # once it is imported, so is all of Inductor
_DEVICE_TYPES: Final = ("cuda", "cpu")  # CPU tensors are the emulator's

_NO_PLACE: Final = (
    f"Inductor of torch {torch.__version__} has no place for Tilesmith's pass: an override takes the products of "
    "compiled programs one by one, without what follows them"
)

_is_installed = False
_finder: "_Finder | None" = None


def attach() -> None:
    """Has overrides prepare it."""
    registration.when_one_begins(prepare)


def prepare() -> None:
    """Has compiled programs go through the pass from now on. It may be called again, and then costs nothing."""
    global _finder
    if _is_installed:
        return
    if getattr(sys.modules.get(_COMPILER), "compile_fx", None) is not None:
        install()
    elif _finder is None:
        _finder = _Finder(_COMPILER, install)
        sys.meta_path.insert(0, _finder)


def install() -> None:
    """Registers the pass. It may be called again."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    try:
        from torch._inductor.codegen.common import custom_backend_passes, init_backend_registration
    except ImportError:  # none of it is promised
        warnings.warn(_NO_PLACE, stacklevel=2)
        return

    from tilesmith.inductor.graph_pass import ProductPass

    init_backend_registration()  # which would undo what was registered before it
    for device_type in _DEVICE_TYPES:
        custom_backend_passes[device_type] = ProductPass(device_type, custom_backend_passes.get(device_type))


class _Finder(MetaPathFinder):
    """Calls a function when a module has been imported, once."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """Another loader, and what is to be done after it."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:  # what tracebacks ask a loader for: sources, names
        return getattr(self._loader, name)
