"""The operators of compiled graphs: `tilesmith::product`, a product with all that its kernels can do before they store
it, and `tilesmith::aligned`, a copy whose lines start at addresses that TMA can take.

The pass over these graphs writes them; they have no gradients, since such graphs are differentiated before. Users call
`tilesmith.matmul` and `tilesmith.linear`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from tilesmith.core.accuracy import numerics
from tilesmith.core.checks import check_call, common_dtype, product_shape, result_dtype
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.package import NAMESPACE
from tilesmith.core.problem import ALIGNMENT, contiguous_strides
from tilesmith.runtime.registry import executor_on
from tilesmith.torch_ops.linear import finished

_library = Library(NAMESPACE, "FRAGMENT")
_library.define(
    "product(Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None, *, str? activation=None, "
    "float scale=1.0, float residual_scale=1.0, str? accuracy=None, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define("aligned(Tensor lines) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))

product = getattr(torch.ops, NAMESPACE).product.default
aligned = getattr(torch.ops, NAMESPACE).aligned.default


def composed(a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None) -> Tensor:
    """The same by torch's functions, in one type that holds sums: for tensors that no executor multiplies."""
    dtype = result_dtype(common_dtype(a, b), out_dtype)
    wide = torch.promote_types(dtype, torch.float32)
    sums = torch.matmul(a.to(wide), b.to(wide)) * epilogue.scale
    if epilogue.bias is not None:
        sums = sums + epilogue.bias.to(wide)
    residual = None if epilogue.residual is None else epilogue.residual_scale * epilogue.residual.to(wide)
    return finished(sums, epilogue.activation, residual).to(dtype)


def _product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    scale: float = 1.0,
    residual_scale: float = 1.0,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    epilogue = Epilogue(bias, activation, residual, scale, residual_scale)
    executor = executor_on(a.device.type)
    if executor is None:
        return composed(a, b, epilogue, out_dtype)
    is_plain = bias is None and residual is None and activation is None and scale == 1
    return executor.multiply(*(a, b, numerics(accuracy, a.dtype), out_dtype), epilogue=None if is_plain else epilogue)


_library.impl("product", _product, "CUDA")
_library.impl("product", _product, "CPU")


def _product_fake(
    a: Tensor, b: Tensor, *_: Any, accuracy: str | None = None, out_dtype: torch.dtype | None = None, **__: Any
) -> Tensor:
    check_call(a, b, accuracy)
    return a.new_empty(product_shape(a.shape, b.shape), dtype=result_dtype(common_dtype(a, b), out_dtype))


register_fake(f"{NAMESPACE}::product", _product_fake, lib=_library)


def _aligned(lines: Tensor) -> Tensor:
    return _aligned_fake(lines).copy_(lines)


def _aligned_fake(lines: Tensor) -> Tensor:
    """Every line starts at a multiple of 16 bytes."""
    *outer, length = lines.shape
    gap = -length % (ALIGNMENT // lines.dtype.itemsize)
    return lines.new_empty_strided(lines.shape, contiguous_strides((*outer, length + gap)))


_library.impl("aligned", _aligned, "CUDA")
_library.impl("aligned", _aligned, "CPU")
register_fake(f"{NAMESPACE}::aligned", _aligned_fake, lib=_library)
