"""The element types as CUDA spells them: cuda/element.cuh."""

from typing import Final

import torch

from tilesmith.core.params import KernelEnum

CUDA_TYPES: Final[dict[torch.dtype, str]] = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "tilesmith::float16",
    torch.bfloat16: "tilesmith::bfloat16",
    torch.int32: "int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
}
# Two neighbours, which are moved like one element.
PAIR_TYPES: Final[dict[torch.dtype, str]] = {torch.int8: "short", torch.uint8: "unsigned short"}


class ElementType(KernelEnum):
    """The same as a number, for a kernel that learns it when it runs."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3


ELEMENT_TYPES: Final = {
    torch.float64: ElementType.FLOAT64,
    torch.float32: ElementType.FLOAT32,
    torch.float16: ElementType.FLOAT16,
    torch.bfloat16: ElementType.BFLOAT16,
}
