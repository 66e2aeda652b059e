"""Parameters of nothing yet: a kernel is known before there is a product for it."""

from dataclasses import fields
from typing import Any, TypeVar

from tilesmith.core.params import ParameterBlock

Block = TypeVar("Block", bound=ParameterBlock)


def blank(block: type[Block], **arrays_and_blocks: Any) -> Block:
    """Parameters that a kernel declares like those of any launch: zeros, but for what has a length.

    >>> from dataclasses import dataclass
    >>> from tilesmith.core.params import Int32, Int64s
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Parameters(ParameterBlock):
    ...     m: Int32
    ...     strides: Int64s
    >>> blank(Parameters, strides=(0,) * 3).declaration() == Parameters(m=5, strides=(8, 4, 2)).declaration()
    True
    """
    return block(**{each.name: arrays_and_blocks.get(each.name, 0) for each in fields(block)})
