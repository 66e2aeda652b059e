"""The element types as CUDA spells them: cuda/element.cuh."""

from typing import Final

import torch

CUDA_TYPES: Final[dict[torch.dtype, str]] = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "tilesmith::float16",
    torch.bfloat16: "tilesmith::bfloat16",
}
