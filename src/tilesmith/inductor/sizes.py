"""Sizes in a graph: numbers, or symbols of which no question may make a condition on the compiled program."""

from collections.abc import Sequence
from typing import Any

import torch


def are_same(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether sizes are known to be the same, whatever the symbols in them are.

    >>> are_same((2, 3), (2, 3)), are_same((2,), (2, 3))
    (True, False)
    """
    return len(some) == len(others) and all(map(_is_same, some, others))


def is_one(size: int) -> bool:
    return _is_same(size, 1)


def _is_same(x: int, y: int) -> bool:
    if not isinstance(x, torch.SymInt) and not isinstance(y, torch.SymInt):
        return x == y
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(x == y)


def hint(size: int) -> int | None:
    """What a size was in the call that was traced; None where nothing is known of it.

    >>> hint(3)
    3
    """
    if not isinstance(size, torch.SymInt):
        return size
    found = getattr(size.node, "hint", None)  # which asks for no condition
    return None if found is None else int(found)


def hinted(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of these sizes on the meta device, with hints for symbols; None where there is none."""
    sizes, strides = _hints(tensor.shape), _hints(tensor.stride())
    (offset,) = _hints([tensor.storage_offset()]) or (None,)
    if sizes is None or strides is None or offset is None:
        return None
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = torch.empty(offset + max(last, 0) + 1, dtype=tensor.dtype, device="meta")
    return memory.as_strided(sizes, strides, offset)


def _hints(sizes: Sequence[Any]) -> list[int] | None:
    found = [each for each in map(hint, sizes) if each is not None]
    return found if len(found) == len(sizes) else None
