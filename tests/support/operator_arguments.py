"""Arguments of our operators, one of each kind that takes another way through them: for `torch.library.opcheck`."""

from typing import Any

import torch
from torch import Tensor

import tilesmith
from tilesmith.core.problem import OUT_DTYPES

Arguments = tuple[tuple[Tensor, Tensor], dict[str, Any]]

OF_MATMUL = (
    *(f"{dtype} to {out}" for dtype, wider in OUT_DTYPES.items() for out in wider),
    *("fp32", "tf32", "ieee", "mixed", "transposed", "sliced", "expanded", "negated", "no rows", "no K", "broadcast"),
)
OF_MATMUL_OUT = (
    *(f"{dtype} to {out}" for dtype, wider in OUT_DTYPES.items() for out in wider),
    *("ieee", "mixed", "transposed", "sliced", "no K", "broadcast", "vectors", "packed a", "packed b", "both packed"),
)


def arguments(name: str, device: str) -> Arguments:
    """Those of `tilesmith::matmul`. Operands of floats ask for gradients."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(device, dtype)
        return torch.randint(0, 100, shape, generator=generator).to(device, dtype)

    def wanting(a: Tensor, b: Tensor, **options: Any) -> Arguments:
        return (a.requires_grad_(a.is_floating_point()), b.requires_grad_(b.is_floating_point())), options

    for dtype, wider in OUT_DTYPES.items():
        for out_dtype in wider:
            if name == f"{dtype} to {out_dtype}":
                return wanting(random(3, 8, dtype=dtype), random(8, 5, dtype=dtype), out_dtype=out_dtype)
    match name:
        case "fp32" | "tf32" | "ieee":
            return wanting(random(2, 40, 36), random(36, 33), accuracy=name)
        case "mixed":
            return wanting(random(40, 36), random(36, 33, dtype=torch.bfloat16), accuracy="fp32")
        case "transposed":
            return wanting(random(8, 3).T, random(2, 5, 8).mT)
        case "sliced":
            return wanting(random(9, 24)[::3, 1::3], random(8, 20)[:, 3:8])
        case "expanded":
            return wanting(random(1, 8).expand(3, 8), random(8, 5).expand(2, 8, 5))
        case "negated":
            return wanting(torch.complex(random(3, 8), random(3, 8)).conj().imag, random(8, 5))
        case "no rows":
            return wanting(random(0, 8), random(8, 5))
        case "no K":
            return wanting(random(3, 0), random(0, 5))
        case "broadcast":
            return wanting(random(2, 1, 3, 8), random(4, 8, 5))
        case "vectors":
            return wanting(random(8), random(8))
        case "packed a" | "packed b" | "both packed":
            return wanting(random(137, 195), random(195, 263), accuracy="fp32")
    raise KeyError(name)


def arguments_with_out(name: str, device: str) -> Arguments:
    """Those of `tilesmith::matmul_out`, whose operands cannot ask for gradients."""
    (a, b), options = arguments(name, device)
    a, b = a.detach(), b.detach()
    dtype = options.pop("out_dtype", torch.float32)
    shape = torch.empty(a.shape, device="meta").matmul(torch.empty(b.shape, device="meta")).shape
    out = torch.zeros(shape, dtype=dtype, device=device)
    if name == "transposed":
        out = out.mT.contiguous().mT
    elif name == "sliced":
        out = torch.zeros(shape[0], 2 * shape[1], dtype=dtype, device=device)[:, ::2]
    if name in ("packed a", "both packed"):
        options["a_packed"] = _planes(a, first=True)
    if name in ("packed b", "both packed"):
        options["b_packed"] = _planes(b, first=False)
    return (a, b), {"out": out, **options}


def _planes(operand: Tensor, *, first: bool) -> Tensor | None:
    """What `pack` keeps on a GPU. On the CPU it keeps nothing, and the operator reads none of it."""
    if operand.is_cpu:
        return torch.zeros(64, dtype=torch.uint8)
    return tilesmith.pack(operand, first=first, accuracy="fp32").terms
