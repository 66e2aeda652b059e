"""What a model computes, seen while it runs in float64: its products, their K, and how rounding would show in it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tilesmith.bench.precision import narrowed
from tilesmith.kernelbench.check.loading import as_floats, has_nan

# Operations of ATen that are matrix products, with the places of their two operands.
PRODUCTS: Final[dict[str, tuple[int, int]]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "mv": (0, 1),
    "addmv": (1, 2),
    "dot": (0, 1),
    "vdot": (0, 1),
    "convolution": (0, 1),
}
# The same under the names that a call may also show: before they are taken apart, or as one library's own.
LIBRARY_PRODUCTS: Final = frozenset(PRODUCTS) | {
    *("matmul", "einsum", "linear", "tensordot", "chain_matmul", "linalg_matmul", "linalg_multi_dot", "inner"),
    *("_addmm_activation", "addmm_dtype", "_scaled_mm", "_scaled_grouped_mm", "_grouped_mm", "_int_mm"),
    *("mkldnn_linear", "mkl_linear", "_convolution", "cudnn_convolution", "mkldnn_convolution", "conv1d", "conv2d"),
    *("conv3d", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
}
_TORCHS: Final = frozenset({"aten", "mkl", "mkldnn", "onednn", "quantized"})  # libraries of operations
# Operations through which the sum of the terms' absolute values stays one: sums, products, moves.
_MONOTONE: Final = frozenset(PRODUCTS) - {"convolution"} | {
    *("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "slice"),
    *("select", "alias", "as_strided", "detach", "clone", "_to_copy", "copy_", "unbind", "split", "diagonal"),
    *("add", "mul", "sum", "mean", "cat", "stack", "tril", "triu", "diag_embed", "lift_fresh", "zeros", "empty"),
    *("zero_", "fill_", "new_zeros", "zeros_like", "_reshape_alias", "unsafe_split", "narrow", "movedim"),
}

_AT_ONCE: Final = 2**26  # elements that are compared; float64 takes much memory


class Mode(TorchDispatchMode):
    """Sees the operations of ATen that are called in this thread, from Python or from C++."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch._dynamo is imported, which takes seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = str(func.overloadpacket.__name__)
        is_torchs = func.namespace in _TORCHS
        return self.called(name if is_torchs else f"{func.namespace}::{name}", func, args, kwargs or {})

    def called(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls the operation. Its name is without the overload, and with the library if that is not torch's."""
        return operation(*args, **kwargs)


class Products(Mode):
    """Notes the products of a float64 run: the largest K, and the floating-point operations that no zero spares."""

    def __init__(self) -> None:
        super().__init__()
        self.k = 0
        self.flops = 0.0
        self.others: set[str] = set()

    @property
    def is_product(self) -> bool:
        """Whether the model has products and nothing that is not a sum, a product or a move."""
        return self.k > 0 and not self.others

    def called(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = operation(*args, **kwargs)
        if name in PRODUCTS:
            left, right = (args[place] for place in PRODUCTS[name])
            k, flops = _size(name, left, right, result)
            self.k = max(self.k, k)
            self.flops += flops
        if name not in _MONOTONE:
            self.others.add(name)
        return result


def _size(name: str, left: Tensor, right: Tensor, result: Tensor) -> tuple[int, float]:
    """K, and twice the number of multiplications whose factors are both other than zero."""
    if name == "convolution":
        k = right[0].numel()
        return k, 2.0 * k * result.numel()
    columns, rows = left != 0, right != 0
    by_column = columns.sum(-2) if left.dim() > 1 else columns.long()
    by_row = rows.sum(-1) if right.dim() > 1 else rows.long()
    return left.shape[-1], 2.0 * (by_column * by_row).sum().item()


class Narrow(Mode):
    """Cuts the operands of every product off to the bits of a precision class."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._class = name

    def called(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in PRODUCTS:
            operands = list(args)
            for place in PRODUCTS[name]:
                x = operands[place]
                cut = narrowed(as_floats(x), self._class, torch.trunc)
                operands[place] = torch.view_as_complex(cut) if x.is_complex() else cut
            args = tuple(operands)
        return operation(*args, **kwargs)


def widened(values: Any) -> Any:
    """Tensors of floats and complex numbers with those of float64, the rest as it is."""

    def wide(x: Tensor) -> Tensor:
        return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x

    return tree_map_only(Tensor, wide, values)


def absolute(values: Any) -> Any:
    """Tensors of floats and complex numbers as their absolute values, the rest as it is."""
    return tree_map_only(Tensor, lambda x: x.abs() if has_nan(x) else x, values)


def error(outputs: list[Tensor], exact: list[Tensor], scales: list[Tensor]) -> float:
    """The largest |output - exact| / scale of all elements; NaN where one is NaN and the exact one is not. Zero where
    both are the same, infinities and NaNs too."""
    found = 0.0
    for tensors in zip(outputs, exact, scales, strict=True):
        for output, right, scale in zip(*(x.reshape(-1).split(_AT_ONCE) for x in tensors), strict=True):
            worst = _largest(output.double(), right, scale)
            if worst != worst:
                return worst
            found = max(found, worst)
    return found


def _largest(output: Tensor, right: Tensor, scale: Tensor) -> float:
    same = (output == right) | (output.isnan() & right.isnan())
    relative = torch.where(same, 0.0, (output - right).abs() / scale)
    return relative.max().item() if relative.numel() else 0.0
