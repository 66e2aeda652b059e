"""The operators that PyTorch dispatches in a block."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchDispatchMode):
    """Their names and keyword arguments, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((str(func), kwargs or {}))
        return func(*args, **(kwargs or {}))
