"""`torch.compile(model, backend="tilesmith")`: Inductor, with our products, where no override is in force too."""

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from tilesmith.inductor import hook


def backend(gm: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """Compiles a graph by Inductor. `mode` and `options` are as for `torch.compile`.

    >>> import torch
    >>> compiled = torch.compile(lambda x: x + 1, backend=backend)
    """
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from tilesmith.inductor.graph_pass import compiling_by
    from tilesmith.override.settings import Settings

    hook.install()
    settings = Settings()
    patches = (list_mode_options(mode) if mode not in (None, "default") else {}) | dict(options or {})

    def inner(*arguments: Any, **keywords: Any) -> Any:
        """Compiles forward or backward graphs, these at the time of the first gradient, and by another thread."""
        with config.patch(patches), compiling_by(settings):
            return compile_fx_inner(*arguments, **keywords)

    with config.patch(patches), compiling_by(settings):
        return compile_fx(gm, inputs, inner_compile=inner)
