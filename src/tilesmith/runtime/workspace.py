"""Memory for outputs, and for workspaces that the launches of a product share among themselves.

A workspace may be given back as soon as the last of them is made: later work on their stream comes after them.
To allocate one takes as long as a launch, so short products borrow it from what is kept for their stream.
"""

from typing import Final

import torch

from tilesmith.core.recent import Recent

LENT_BYTES: Final = 16 << 20
_STREAMS: Final = 8  # that keep workspaces: the last that were used, and up to twice as many

# By device and stream. What is lent is not on the list: another thread may launch on the same stream in between.
_kept: Final[Recent[tuple[int, int], list[torch.Tensor]]] = Recent(_STREAMS)
_young: Final = _kept.young

# torch.empty_strided on the current device, without its microseconds of argument parsing: what torch's own compiled
# code allocates with.
empty_strided = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]


def allocate(size_bytes: int) -> torch.Tensor:
    """A workspace of so many bytes on the current device."""
    return empty_strided((size_bytes,), (1,), torch.uint8)  # type: ignore[no-any-return]


def borrow(device_index: int, stream: int) -> torch.Tensor:
    """A workspace of LENT_BYTES on the current device, for launches on one of its streams."""
    try:
        return _young[device_index, stream].pop()
    except LookupError:
        kept = _kept.get((device_index, stream))
        return kept.pop() if kept else allocate(LENT_BYTES)


def give_back(device_index: int, stream: int, borrowed: torch.Tensor) -> None:
    """Keeps a borrowed workspace for the next one: all launches that use it are made."""
    kept = _young.get((device_index, stream))
    if kept is None:
        kept = _kept.get((device_index, stream))
        if kept is None:
            kept = _kept[device_index, stream] = []
    kept.append(borrowed)
