"""What Inductor writes for our operators: for a product a call of a `Site`, into a buffer that is Inductor's own."""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import register_lowering
from torch._inductor.virtualized import V

from tilesmith.core.package import NAMESPACE
from tilesmith.inductor.site import Site
from tilesmith.torch_ops.product import aligned, product

_SITE = f"{NAMESPACE}_site"


class ProductKernel(ir.ExternKernelOut):
    """A call of a site, which is made when its code is written: then the layouts of all operands are settled."""

    def __init__(self, layout: Any, inputs: Sequence[Any], options: dict[str, Any]) -> None:
        super().__init__(layout=layout, inputs=inputs, python_kernel_name=_SITE)
        self._options = options

    def codegen(self, wrapper: Any) -> None:
        options = self._options | {"layouts": self._layouts()}
        arguments = ", ".join(f"{name}={each!r}" for name, each in options.items() if each is not None)
        self.python_kernel_name = f"{NAMESPACE}_{hashlib.sha256(arguments.encode()).hexdigest()[:12]}"
        whole = wrapper  # of a part of a graph, as those between captures are, the whole's has the imports
        while (outer := getattr(whole, "parent_wrapper", None)) is not None:
            whole = outer
        whole.add_import_once(f"from {Site.__module__} import {Site.__name__} as {_SITE}")
        whole.add_import_once(f"{self.python_kernel_name} = {_SITE}({arguments})")
        super().codegen(wrapper)

    def _layouts(self) -> Any:
        """The device, and type, sizes and strides of each operand; None if some are not numbers."""
        found: list[Any] = [str(self.get_device())]
        operands: tuple[Any, ...] = (*self.inputs, self)
        for each in operands:
            numbers = [[*each.get_size()], [*each.get_stride()]]
            if any(getattr(number, "free_symbols", None) for part in numbers for number in part):
                return None
            found.append((str(each.get_dtype()), *([int(number) for number in part] for part in numbers)))
        return found


def _lowered(
    a: Any,
    b: Any,
    bias: Any = None,
    residual: Any = None,
    *,
    scale: float = 1.0,
    residual_scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
    **others: Any,
) -> Any:
    a, b = (ir.ExternKernel.require_stride1(ir.ExternKernel.realize_input(each)) for each in (a, b))
    added = [ir.ExternKernel.realize_input(each) for each in (bias, residual) if each is not None]
    is_batch = len(a.get_size()) > 2
    options = {
        "operator": ("bmm" if is_batch else "mm") if not added else ("baddbmm" if is_batch else "addmm"),
        **others,
        "out_dtype": out_dtype,
        "scale": None if scale == 1 else scale,
        "residual_scale": None if residual_scale == 1 else residual_scale,
        "has_bias": None if bias is None else True,
        "has_residual": None if residual is None else True,
    }
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    layout = ir.FixedLayout(
        a.get_device(), out_dtype or a.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size)
    )
    return ir.TensorBox.create(ProductKernel(layout, [a, b, *added], options))


def _lowered_copy(lines: Any) -> Any:
    """A buffer whose lines are aligned: what computes it writes it so, and an input is copied."""
    return ir.ExternKernel.require_exact_strides(lines, V.graph.current_node.meta["val"].stride())


@cache
def register() -> None:
    """Tells Inductor how our operators are written. It may be called again."""
    register_lowering(product, type_promotion_kind=None)(_lowered)
    register_lowering(aligned, type_promotion_kind=None)(_lowered_copy)
